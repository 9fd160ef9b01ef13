//! SIGBUS: a mapped model file that lost its bytes ends the process, and this is the sentence it leaves.
//!
//! There is no way back from it: the memory that a kernel was reading is gone, and no other answer would be right.

/// What is written when a page of a mapped file cannot be read.
#[cfg(target_os = "linux")]
const LOST: &[u8] =
    b"tern: a mapped file could not be read (SIGBUS): the model file was truncated or overwritten while \
in use, or its disk failed; replace files by renaming, or use --no-mmap to run from a copy in memory\n";

/// Has SIGBUS explained on stderr before the process ends with 1; other causes than a lost page end it as ever.
#[cfg(target_os = "linux")]
pub(crate) fn explain() {
    use std::mem::MaybeUninit;

    // SAFETY: an all-zero `sigaction` is a valid value, filled before use; the handler calls only functions that are
    // safe in a signal handler. `SA_ONSTACK` uses the alternate stack that Rust's threads have, and no other where
    // there is none.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        libc::sigemptyset(&mut action.sa_mask);
        // a system that refuses leaves the default, which ends the process too
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn explain() {}

/// Writes the sentence and ends the process. Nothing here allocates, locks or unwinds.
#[cfg(target_os = "linux")]
extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `siginfo_t` to a handler with `SA_SIGINFO`.
    if unsafe { (*info).si_code } != libc::BUS_ADRERR {
        // broken memory, a misaligned access or `kill -BUS`: the default action, which the flags have restored
        // SAFETY: `raise` is async-signal-safe.
        unsafe { libc::raise(libc::SIGBUS) };
        return;
    }
    // SAFETY: `write` and `_exit` are async-signal-safe, and the sentence is static.
    unsafe {
        libc::write(libc::STDERR_FILENO, LOST.as_ptr().cast(), LOST.len());
        libc::_exit(1);
    }
}
