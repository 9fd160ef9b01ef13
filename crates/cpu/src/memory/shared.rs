//! Memory that threads write disjoint parts of between two barriers.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::ops::Range;

use crate::memory::lines::{Line, Refused};

/// Bytes of a cache line: vectors of the first values do not reach over two.
pub(crate) const LINE: usize = 64;

/// A fixed number of values, shared by the threads of a pool. They start where a cache line does.
pub(crate) struct Shared<T> {
    /// Those before `start` and after `len` more are there for the alignment alone.
    values: Box<[UnsafeCell<T>]>,
    start: usize,
    len: usize,
}

// SAFETY: all access goes through `get` and `get_mut`, whose callers promise that no part is written by one
// thread and touched by another between two barriers.
unsafe impl<T: Send> Sync for Shared<T> {}

/// Values of which one is made of zero bytes.
///
/// # Safety
/// Zero bytes are such a value, and it has some bytes.
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
    /// `len` zeros. Zeroed memory comes untouched from the system, so it costs nothing until used.
    pub(crate) fn new(len: usize) -> Result<Shared<T>, Refused> {
        Shared::aligned(len, LINE)
    }

    /// The same where so many bytes, a cache line or more, begin.
    pub(crate) fn aligned(len: usize, bytes: usize) -> Result<Shared<T>, Refused> {
        let spare = bytes / T::BYTES;
        let refused = Refused { bytes: (len as u64).saturating_mul(T::BYTES as u64) };
        let layout = len.checked_add(spare).and_then(|all| Layout::array::<T>(all).ok()).ok_or(refused)?;
        // SAFETY: the layout is not empty.
        let values = unsafe { alloc_zeroed(layout) }.cast::<UnsafeCell<T>>();
        if values.is_null() {
            return Err(refused);
        }
        // SAFETY: so many values were allocated as a slice is, zeros are values of this type, and nobody else has them.
        let values = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(values, len + spare)) };
        let start = values.as_ptr().align_offset(bytes).min(spare);
        Ok(Shared { values, start, len })
    }
}

impl<T: Copy> Shared<T> {
    fn all(&self) -> &[UnsafeCell<T>] {
        &self.values[self.start..self.start + self.len]
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where they start, for writes to disjoint parts.
    pub(crate) fn pointer(&self) -> *mut T {
        self.all().as_ptr() as *mut T
    }

    /// # Safety
    /// No thread writes any of `range` before the next barrier.
    pub(crate) unsafe fn get(&self, range: Range<usize>) -> &[T] {
        let part = &self.all()[range];
        // SAFETY: in bounds by the slice above; not written meanwhile by the caller's promise.
        unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), part.len()) }
    }

    /// # Safety
    /// No other thread touches any of `range` before the next barrier.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts, by the caller's promise")]
    pub(crate) unsafe fn get_mut(&self, range: Range<usize>) -> &mut [T] {
        let part = &self.all()[range];
        // SAFETY: in bounds by the slice above; not touched by others by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(part.as_ptr() as *mut T, part.len()) }
    }

    /// # Safety
    /// The value at `index` is not read or written by another thread before the next barrier.
    pub(crate) unsafe fn set(&self, index: usize, value: T) {
        // SAFETY: in bounds by indexing; exclusive by the caller's promise.
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
            // seen from outside: memory that nobody looks at need not be allocated at all
            let refused = std::hint::black_box(Shared::<f32>::new(len)).err();
            assert_eq!(refused, Some(Refused { bytes: (len as u64).saturating_mul(4) }));
        }
    }
}
