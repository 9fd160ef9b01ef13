//! SIGBUS: if a mapped model file is truncated while in use, the process ends with this message.
//!
//! The process cannot continue: the memory that a kernel was reading no longer exists.

/// What is written when a page of a mapped file cannot be read.
#[cfg(target_os = "linux")]
const MESSAGE: &[u8] =
    b"tern: a mapped file could not be read (SIGBUS): the model file was truncated or overwritten while \
in use, or its disk failed; replace files by renaming, or use --no-mmap to run from a copy in memory\n";

/// Installs a handler that explains SIGBUS on stderr and exits with 1; causes other than a lost page
/// keep the default action.
#[cfg(target_os = "linux")]
pub(crate) fn explain() {
    use std::mem::MaybeUninit;

    // SAFETY: an all-zero `sigaction` is a valid value, filled before use; the handler calls only
    // functions that are safe in a signal handler. `SA_ONSTACK` uses the alternate stack of Rust's
    // threads, if the thread has one.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        // the handler stays: another thread may read the lost page while the message is written
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        // if this fails, the default action remains, which ends the process too
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn explain() {}

/// Writes the message and ends the process. Nothing here allocates, locks or unwinds.
#[cfg(target_os = "linux")]
extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `siginfo_t` to a handler with `SA_SIGINFO`.
    if unsafe { (*info).si_code } != libc::BUS_ADRERR {
        // broken memory, a misaligned access or `kill -BUS`: the default action
        // SAFETY: both functions are async-signal-safe.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::raise(libc::SIGBUS);
        }
        return;
    }
    // SAFETY: `write` and `_exit` are async-signal-safe, and the message is static.
    unsafe {
        libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::_exit(1);
    }
}
