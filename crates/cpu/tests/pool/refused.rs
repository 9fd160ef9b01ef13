//! The pool on a system that can start only three threads besides the first.

use threads::Pool;

#[expect(dead_code, reason = "no test uses all of it")]
#[path = "../../src/threads.rs"]
mod threads;

mod sync {
    use std::io;
    use std::thread;

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread::JoinHandle;

    pub(crate) const SPINS: usize = 100;

    pub(crate) struct Builder(String);

    impl Builder {
        pub(crate) fn new() -> Builder {
            Builder(String::new())
        }

        pub(crate) fn name(self, name: String) -> Builder {
            Builder(name)
        }

        pub(crate) fn spawn(self, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
            match self.0.as_str() {
                "tern-cpu-1" | "tern-cpu-2" | "tern-cpu-3" => thread::Builder::new().name(self.0).spawn(work),
                _ => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            }
        }
    }
}

#[test]
fn too_few_threads_are_an_error_with_both_numbers() {
    assert!(Pool::new(4).unwrap().run(&|w| w.barrier()));
    let message = Pool::new(5).err().unwrap().to_string(); // the started threads have ended by now
    assert!(message.starts_with("5 threads were asked for and the system gave 4: "), "{message}");
    assert!(message.contains("use fewer (-t)"), "{message}");
}
