//! The pool with threads that are delayed after each release of a lock, so that what
//! they have read is outdated.

use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use threads::{Pool, Task, Whose};

#[expect(dead_code, reason = "no test uses all of it")]
#[path = "../../src/threads.rs"]
mod threads;

const DELAY: Duration = Duration::from_millis(40);

mod sync {
    use std::ops::{Deref, DerefMut};
    use std::sync::{self, LockResult, PoisonError};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::thread::{Builder, JoinHandle};

    pub(crate) const SPINS: usize = 100;

    pub(crate) struct Mutex<T>(sync::Mutex<T>);
    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);
    pub(crate) struct Condvar(sync::Condvar);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            Ok(MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner))))
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar(sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            guard.0 = guard.0.take().map(|g| self.0.wait(g).unwrap_or_else(PoisonError::into_inner));
            Ok(guard)
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("held until it is dropped")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("held until it is dropped")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            drop(self.0.take());
            if std::thread::current().name().is_some_and(|name| name.starts_with("tern-cpu-")) {
                std::thread::sleep(super::DELAY);
            }
        }
    }
}

/// A thread may be late for a job, but never enters the next one twice: its count of completed units would
/// restart, and all threads would wait for units that are complete.
#[test]
fn a_thread_that_is_late_for_a_job_enters_the_next_one_once() {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            // ends while the other thread, which has seen it, is delayed, unless the pool waits for it
            assert!(pool.run(&|w| {
                if w.index == 0 {
                    sleep(DELAY / 2);
                }
            }));
            assert!(pool.run(&|w| {
                // each thread runs its own half, so both are inside
                for item in w.share(Task { index: 0, items: 2, unit: 1, most: 1 }, Whose::Own).flatten() {
                    assert_eq!(item, w.index);
                }
                w.barrier();
                if w.index == 0 {
                    sleep(5 * DELAY); // the other thread has time to enter again
                }
            }));
        }
        drop(pool);
        done.send(()).unwrap();
    });
    finished.recv_timeout(Duration::from_secs(30)).expect("the pool has stopped");
}
