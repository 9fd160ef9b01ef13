//! The memory limit of an input: allocations beyond it fail, which ends the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes in use at once, by everything in the process.
const MOST: usize = 1 << 30;

struct Limited;
static IN_USE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Limited = Limited;

// SAFETY: every call is passed on to the system allocator, or returns null, which the contract allows
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IN_USE.fetch_add(layout.size(), Relaxed) + layout.size() > MOST {
            IN_USE.fetch_sub(layout.size(), Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc`
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`
        unsafe { System.dealloc(at, layout) }
    }
}
