//! Memory that the system refuses, as it does under `ulimit -v`.
//!
//! What is large is allocated where a refusal is an error of the load or of the request. Everything else is
//! small and cannot fail in Rust, so a reserve is held for it: it is given up when a small allocation is
//! refused, and the process ends with a message and the exit code of an error only after it is used up.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Bytes from which on an allocation is large: its refusal is returned to the caller.
const LARGE: usize = 1 << 20;
/// Bytes of address space that are held for small allocations.
const RESERVE: usize = 24 << 20;
/// Stack of the main thread that is made available at the start: it could not grow later.
const STACK: usize = 2 << 20;
/// Allocations between two attempts to hold the reserve again.
const RETRY_EVERY: u32 = 1024;

/// The reserve; null if there is none, or if it has been given up.
static HELD: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// Allocations since the reserve was given up; 0 if it is held, or if none is needed.
static SINCE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Bytes of this thread's last large allocation that was refused.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator with a reserve.
pub(crate) struct WithReserve;

impl WithReserve {
    /// What an attempt to allocate returned, or what another one returns without the reserve.
    fn settled(start: *mut u8, bytes: usize, again: impl FnOnce() -> *mut u8) -> *mut u8 {
        if !start.is_null() {
            if SINCE.load(Ordering::Relaxed) != 0 {
                hold_again();
            }
            return start;
        }
        if bytes >= LARGE {
            let _ = REFUSED.try_with(|refused| refused.set(bytes));
            return start;
        }
        give_up();
        let start = again();
        if start.is_null() {
            end(bytes);
        }
        start
    }
}

// SAFETY: all memory is that of `System`, whose contract is this one's; nothing here unwinds.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        let alloc = || unsafe { System.alloc(layout) };
        WithReserve::settled(alloc(), layout.size(), alloc)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        let alloc = || unsafe { System.alloc_zeroed(layout) };
        WithReserve::settled(alloc(), layout.size(), alloc)
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's contract; a refusal leaves the old block as it is.
        let alloc = || unsafe { System.realloc(start, layout, bytes) };
        WithReserve::settled(alloc(), bytes, alloc)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(start, layout) }
    }
}

/// If the address space is limited: holds the reserve, makes the main thread's stack available, and explains
/// aborts. Called by the main thread before there are others.
pub(crate) fn prepare() {
    #[cfg(unix)]
    if limit().is_some() {
        // an arena per thread would reserve 64 MiB of address space each
        #[cfg(target_env = "gnu")]
        // SAFETY: sets an allocator parameter under its lock; a failure has no effect.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1)
        };
        touch_stack();
        HELD.store(map(RESERVE), Ordering::Relaxed);
        explain_aborts();
    }
}

#[inline(never)]
fn touch_stack() {
    std::hint::black_box([0u8; STACK]);
}

/// The limit of the address space in bytes, if there is one.
fn limit() -> Option<u64> {
    #[cfg(unix)]
    {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a local value of the right type.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } == 0;
        (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    }
    #[cfg(not(unix))]
    None
}

/// Address space without memory; null if the system refuses it.
fn map(bytes: usize) -> *mut c_void {
    #[cfg(unix)]
    {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which nothing accesses.
        let start = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED { null_mut() } else { start }
    }
    #[cfg(not(unix))]
    null_mut()
}

/// Returns the reserve to the system.
fn give_up() {
    let held = HELD.swap(null_mut(), Ordering::AcqRel);
    if !held.is_null() {
        SINCE.store(1, Ordering::Relaxed);
        #[cfg(unix)]
        // SAFETY: mapped with this size, and taken out by this thread alone.
        unsafe {
            libc::munmap(held, RESERVE)
        };
    }
}

/// Holds the reserve again if the system has it, now and then.
#[cold]
fn hold_again() {
    if !SINCE.fetch_add(1, Ordering::Relaxed).is_multiple_of(RETRY_EVERY) {
        return;
    }
    let reserve = map(RESERVE);
    if !reserve.is_null() {
        SINCE.store(0, Ordering::Relaxed);
        let other = HELD.swap(reserve, Ordering::AcqRel);
        if !other.is_null() {
            #[cfg(unix)]
            // SAFETY: another thread's mapping of this size, taken out by this thread alone.
            unsafe {
                libc::munmap(other, RESERVE)
            };
        }
    }
}

/// Installs a handler of SIGABRT, which Rust raises after the refusal of a large allocation whose caller
/// cannot return an error, and the C library after the refusal of one of its allocations.
#[cfg(unix)]
fn explain_aborts() {
    use std::mem::MaybeUninit;

    // SAFETY: an all-zero `sigaction` is a valid value, filled before use; the handler calls only functions
    // that are safe in a signal handler.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_abort as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        // if this fails, the default action remains, which ends the process too
        libc::sigaction(libc::SIGABRT, &action, null_mut());
    }
}

/// Ends the process with the message if memory was refused; other aborts keep the default action.
#[cfg(unix)]
extern "C" fn on_abort(_signal: libc::c_int) {
    let refused = REFUSED.try_with(Cell::get).unwrap_or(0);
    if refused != 0 || map(LARGE).is_null() {
        end(refused);
    }
    // SAFETY: the function is async-signal-safe. `abort` raises the signal again after this handler.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
}

/// Writes how many bytes were refused, and the limit, and ends the process. Nothing here
/// allocates, locks or unwinds.
fn end(refused: usize) -> ! {
    let mut message = Message::default();
    message.text(b"tern: out of memory: ");
    if refused > 0 {
        message.number(refused as u64);
        message.text(b" bytes were refused");
    } else {
        message.text(b"the system refuses more");
    }
    if let Some(limit) = limit() {
        message.text(b"; the process is limited to ");
        message.number(limit);
        message.text(b" bytes (ulimit -v)");
    }
    message.text(b"; a smaller context (-c), fewer threads (-t) or a smaller model take less\n");
    #[cfg(unix)]
    // SAFETY: both functions are async-signal-safe, and the bytes are initialized.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.bytes.as_ptr().cast(), message.len);
        libc::_exit(1)
    }
    #[cfg(not(unix))]
    std::process::exit(1)
}

/// A text of bounded length, made without allocating.
struct Message {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Message {
    fn default() -> Message {
        Message { bytes: [0; 256], len: 0 }
    }
}

impl Message {
    fn text(&mut self, text: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.len).zip(text) {
            *place = *byte;
            self.len += 1;
        }
    }

    fn number(&mut self, number: u64) {
        let (mut digits, mut rest, mut at) = ([0; 20], number, 20);
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(&digits[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_numbers_and_a_bounded_length() {
        let mut message = Message::default();
        for number in [0, 7, 250_000, u64::MAX] {
            message.number(number);
            message.text(b" ");
        }
        assert_eq!(&message.bytes[..message.len], b"0 7 250000 18446744073709551615 ");
        message.text(&[b'x'; 300]);
        assert_eq!(message.len, 256);
    }

    #[test]
    fn the_refusal_of_a_large_allocation_is_the_callers() {
        let layout = Layout::from_size_align(isize::MAX as usize / 2, 8).unwrap();
        // without black_box the compiler omits the call
        // SAFETY: the layout is not empty, and nothing is written.
        assert!(std::hint::black_box(unsafe { WithReserve.alloc(layout) }).is_null());
        assert_eq!(REFUSED.get(), layout.size());
        assert_eq!(std::thread::spawn(|| REFUSED.get()).join().unwrap(), 0);
        assert!(Vec::<u8>::new().try_reserve_exact(layout.size()).is_err());
    }
}
