//! Memory for packed weights: cache lines in large pages, and the release of mapped file pages.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

/// The system could not allocate this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) bytes: u64,
}

/// 64 bytes, aligned to a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line(pub(crate) [i16; 32]);

/// Bytes of a large page.
pub(crate) const LARGE: usize = 2 << 20;

/// Lines that threads fill once, part by part, and then only read.
pub(crate) struct Lines {
    start: NonNull<Line>,
    layout: Layout,
}

// SAFETY: by the contracts of `get` and `clear` no part is written by one thread and accessed by another.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// Uninitialized memory; `None` if the system has too little.
    pub(crate) fn new(len: usize) -> Option<Lines> {
        let bytes = len.checked_mul(size_of::<Line>())?.max(size_of::<Line>());
        let align = if bytes >= LARGE { LARGE } else { align_of::<Line>() };
        let layout = Layout::from_size_align(bytes, align).ok()?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc(layout) }.cast::<Line>())?;
        want_large_pages(start.as_ptr().addr(), bytes);
        Some(Lines { start, layout })
    }

    fn at(&self, range: &Range<usize>) -> *mut Line {
        assert!(range.start <= range.end && range.end * size_of::<Line>() <= self.layout.size());
        // SAFETY: inside the room, as was checked.
        unsafe { self.start.as_ptr().add(range.start) }
    }

    /// Zeroed lines to fill.
    ///
    /// # Safety
    /// No other thread accesses them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts, by the function's contract")]
    pub(crate) unsafe fn clear(&self, range: Range<usize>) -> &mut [Line] {
        let start = self.at(&range);
        // SAFETY: in bounds; zeros are lines; exclusive by the contract.
        unsafe {
            start.write_bytes(0, range.len());
            std::slice::from_raw_parts_mut(start, range.len())
        }
    }

    /// Lines that were filled.
    ///
    /// # Safety
    /// `clear` was called for all of them, and no thread writes them.
    pub(crate) unsafe fn get(&self, range: Range<usize>) -> &[Line] {
        // SAFETY: the contract of this function.
        unsafe { std::slice::from_raw_parts(self.at(&range), range.len()) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}

/// Removes pages of a mapped file from this process. The system may keep them cached, and reads them again on
/// access. Memory other than a read-only file mapping is left alone.
pub(crate) fn release(data: &[u8]) {
    const PAGE: usize = 4096;
    let (start, end) = (data.as_ptr().addr(), data.as_ptr().addr() + data.len());
    let (start, end) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if start < end && maps.lines().any(|line| is_file_around(line, start..end)) {
        advise(start..end, Advice::Release);
    }
}

/// Whether a line of `/proc/self/maps` is a private read-only mapping of a file around `range`:
/// `7f00-7f10 r--p 00000000 08:01 4242 /path`
fn is_file_around(line: &str, range: Range<usize>) -> bool {
    let mut fields = line.split_ascii_whitespace();
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let Some((from, to)) = fields.next().and_then(|f| f.split_once('-')) else { return false };
    let (Some(from), Some(to)) = (address(from), address(to)) else { return false };
    let readable = fields.next().is_some_and(|rights| matches!(rights, "r--p" | "r--s"));
    let named = fields.nth(2).is_some_and(|inode| inode != "0");
    from <= range.start && range.end <= to && readable && named
}

#[derive(Clone, Copy)]
enum Advice {
    LargePages,
    Release,
}

/// Requests large pages for memory that can fill one.
pub(crate) fn want_large_pages(start: usize, bytes: usize) {
    if bytes >= LARGE {
        advise(start..start + bytes, Advice::LargePages);
    }
}

/// A hint; nothing depends on its effect.
#[cfg(target_os = "linux")]
fn advise(range: Range<usize>, advice: Advice) {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int;
    }
    let advice = match advice {
        Advice::LargePages => 14,
        Advice::Release => 4,
    };
    // SAFETY: large pages change no contents, and only read-only mappings of files are released.
    unsafe { madvise(std::ptr::with_exposed_provenance_mut(range.start), range.len(), advice) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_range: Range<usize>, _advice: Advice) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_mapped_for_reading_are_released() {
        let file = "7000-9000 r--p 00000000 08:01 4242 /model.gguf";
        assert!(is_file_around(file, 0x7000..0x9000) && is_file_around(file, 0x8000..0x9000));
        assert!(!is_file_around(file, 0x6000..0x9000) && !is_file_around(file, 0x8000..0xA000));
        for other in
            ["7000-9000 rw-p 00000000 00:00 0 [heap]", "7000-9000 rw-p 0 08:01 4242 /f", "", "7000-x"]
        {
            assert!(!is_file_around(other, 0x7000..0x9000), "{other}");
        }
        let heap = vec![7u8; 1 << 20];
        release(&heap);
        assert!(heap.iter().all(|b| *b == 7));
    }

    #[test]
    fn lines_are_filled_and_read() {
        let lines = Lines::new(LARGE / 32).unwrap();
        // SAFETY: one thread.
        unsafe {
            lines.clear(3..5)[1].0[2] = 9;
            assert_eq!(lines.get(4..5)[0].0[..4], [0, 0, 9, 0]);
        }
        assert!(Lines::new(usize::MAX / 8).is_none());
    }
}
