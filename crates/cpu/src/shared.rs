//! Memory that threads write disjoint parts of between two barriers.

use std::cell::UnsafeCell;
use std::ops::Range;

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

impl<T: Copy + Default> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared::new(0)
    }
}

impl<T: Copy + Default> Shared<T> {
    /// `len` default values. Zeroed memory comes untouched from the system, so it costs nothing until used.
    pub(crate) fn new(len: usize) -> Shared<T> {
        Shared::aligned(len, LINE)
    }

    /// The same where so many bytes, a cache line or more, begin.
    pub(crate) fn aligned(len: usize, bytes: usize) -> Shared<T> {
        let spare = bytes / size_of::<T>();
        let values = vec![T::default(); len + spare].into_boxed_slice();
        let start = values.as_ptr().align_offset(bytes).min(spare);
        // SAFETY: `UnsafeCell<T>` has the layout of `T`.
        let values = unsafe { Box::from_raw(Box::into_raw(values) as *mut [UnsafeCell<T>]) };
        Shared { values, start, len }
    }

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
