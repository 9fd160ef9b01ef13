//! Memory of which threads write disjoint parts between two barriers.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::ops::Range;

use crate::memory::lines::{Line, Refused};

/// Bytes of a cache line; aligned vectors do not cross two of them.
pub(crate) const LINE: usize = 64;

/// A fixed number of values, shared by the threads of a pool, aligned to a cache line.
pub(crate) struct Shared<T> {
    /// Values before `start` and after the next `len` exist for alignment only.
    values: Box<[UnsafeCell<T>]>,
    start: usize,
    len: usize,
}

// SAFETY: all access goes through `get` and `get_mut`, by whose contracts no part is written by one
// thread and accessed by another between two barriers.
unsafe impl<T: Send> Sync for Shared<T> {}

/// Types with a value of zero bytes.
///
/// # Safety
/// Zero bytes are a valid value, and the size is not zero.
pub(crate) unsafe trait Zeroed: Copy {
    const BYTES: usize = size_of::<Self>();
}
// SAFETY: plain numbers.
unsafe impl Zeroed for f32 {}
// SAFETY: as above.
unsafe impl Zeroed for i32 {}
// SAFETY: as above.
unsafe impl Zeroed for u16 {}
// SAFETY: as above.
unsafe impl Zeroed for i8 {}
// SAFETY: as above.
unsafe impl Zeroed for Line {}

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared { values: Box::default(), start: 0, len: 0 }
    }
}

impl<T: Zeroed> Shared<T> {
    /// `len` zeros. The system maps zeroed memory when it is first used.
    pub(crate) fn new(len: usize) -> Result<Shared<T>, Refused> {
        Shared::aligned(len, LINE)
    }

    /// The same, aligned to `bytes`, a cache line or more.
    pub(crate) fn aligned(len: usize, bytes: usize) -> Result<Shared<T>, Refused> {
        let spare = bytes / T::BYTES;
        let refused = Refused { bytes: (len as u64).saturating_mul(T::BYTES as u64) };
        let layout = len.checked_add(spare).and_then(|all| Layout::array::<T>(all).ok()).ok_or(refused)?;
        // SAFETY: the layout is not empty.
        let values = unsafe { alloc_zeroed(layout) }.cast::<UnsafeCell<T>>();
        if values.is_null() {
            return Err(refused);
        }
        // SAFETY: the allocation has the layout of this slice, zeros are valid values, and
        // there is no other reference.
        let values = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(values, len + spare)) };
        let start = values.as_ptr().align_offset(bytes).min(spare);
        Ok(Shared { values, start, len })
    }
}

impl<T: Zeroed> Shared<T> {
    /// The bytes of some values, without padding: plain numbers.
    ///
    /// # Safety
    /// That of [`Shared::get`].
    pub(crate) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the contract of this function.
        let values = unsafe { self.get(range) };
        // SAFETY: the same memory; numbers have no padding.
        unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
    }

    /// Overwrites some values by as many bytes as they have.
    ///
    /// # Safety
    /// That of [`Shared::get_mut`].
    pub(crate) unsafe fn set_bytes(&self, range: Range<usize>, bytes: &[u8]) {
        // SAFETY: the contract of this function.
        let values = unsafe { self.get_mut(range) };
        assert_eq!(size_of_val(values), bytes.len(), "as many bytes as values");
        // SAFETY: as many bytes, any of which are plain numbers, into memory that is exclusive.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), bytes.len()) }
    }
}

impl<T: Copy> Shared<T> {
    fn all(&self) -> &[UnsafeCell<T>] {
        &self.values[self.start..self.start + self.len]
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Pointer to the first value, for writes to disjoint parts.
    pub(crate) fn pointer(&self) -> *mut T {
        self.all().as_ptr() as *mut T
    }

    /// # Safety
    /// No thread writes any of `range` before the next barrier.
    pub(crate) unsafe fn get(&self, range: Range<usize>) -> &[T] {
        let part = &self.all()[range];
        // SAFETY: in bounds by the slice above; not written meanwhile by the contract.
        unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), part.len()) }
    }

    /// # Safety
    /// No other thread accesses any of `range` before the next barrier.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts, by the contract")]
    pub(crate) unsafe fn get_mut(&self, range: Range<usize>) -> &mut [T] {
        let part = &self.all()[range];
        // SAFETY: in bounds by the slice above; not accessed by other threads, by the contract.
        unsafe { std::slice::from_raw_parts_mut(part.as_ptr() as *mut T, part.len()) }
    }

    /// # Safety
    /// The value at `index` is not read or written by another thread before the next barrier.
    pub(crate) unsafe fn set(&self, index: usize, value: T) {
        // SAFETY: in bounds by indexing; exclusive by the contract.
        unsafe { *self.all()[index].get() = value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_zero_and_start_where_a_line_does() {
        for bytes in [LINE, 4096] {
            let shared = Shared::<f32>::aligned(1000, bytes).unwrap();
            assert_eq!((shared.len(), shared.pointer().addr() % bytes), (1000, 0));
            // SAFETY: one thread.
            assert!(unsafe { shared.get(0..1000) }.iter().all(|x| *x == 0.0));
        }
        assert_eq!(Shared::<Line>::default().len(), 0);
    }

    #[test]
    fn memory_that_cannot_be_had_is_refused_with_its_size() {
        for len in [usize::MAX / 16, usize::MAX] {
            // black box: the compiler may omit an allocation that is never used
            let refused = std::hint::black_box(Shared::<f32>::new(len)).err();
            assert_eq!(refused, Some(Refused { bytes: (len as u64).saturating_mul(4) }));
        }
    }
}
