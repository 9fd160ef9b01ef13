//! The pool in all orders in which its threads may run, and with all values that memory orderings allow them
//! to read: loom explores them one by one. A deadlock, a lost wake-up or a data race fails the test.

use std::panic::resume_unwind;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use threads::{Pool, Task, Worker};

#[expect(dead_code, reason = "no test uses all of it")]
#[path = "../../src/threads.rs"]
mod threads;

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::{Builder, JoinHandle};

    /// One spin represents any number of spins.
    pub(crate) const SPINS: usize = 1;
}

/// Plain memory that the units of a phase write and the next phase reads: loom detects a
/// missing barrier between them.
struct Cells<const N: usize>([UnsafeCell<usize>; N]);

// SAFETY: loom checks each access.
unsafe impl<const N: usize> Sync for Cells<N> {}

impl<const N: usize> Cells<N> {
    fn new() -> Cells<N> {
        Cells([(); N].map(|()| UnsafeCell::new(0)))
    }

    fn add(&self, i: usize) {
        // SAFETY: loom fails if another thread accesses it meanwhile.
        self.0[i].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn all(&self, want: usize) {
        // SAFETY: as above.
        self.0.iter().for_each(|cell| cell.with(|cell| assert_eq!(unsafe { *cell }, want)));
    }
}

fn task(index: usize, items: usize) -> Task {
    Task { index, items, unit: 1, most: 1 }
}

/// A phase in which every cell is changed once.
fn phase<const N: usize>(worker: &Worker<'_>, index: usize, cells: &Cells<N>) {
    worker.share_all(task(index, N)).for_each(|item| cells.add(item));
    worker.barrier();
    cells.all(1);
}

/// All orders with at most `switches` preemptions of a runnable thread.
fn check(switches: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.max_branches = 100_000;
    builder.check(test);
}

fn job_after_job(threads: usize) {
    let mut pool = Pool::new(threads).expect("threads");
    for _ in 0..2 {
        let cells = Cells::<2>::new();
        assert!(pool.run(&|w| phase(w, 0, &cells)));
        cells.all(1);
    }
}

#[test]
fn two_threads_do_everything_once_in_job_after_job() {
    check(2, || job_after_job(2));
}

#[test]
fn three_threads_do_everything_once_in_job_after_job() {
    check(1, || job_after_job(3));
}

/// The fewest steps in which a thread could enter a job twice: it takes three switches.
#[test]
fn a_thread_enters_a_job_once() {
    check(3, || {
        let mut pool = Pool::new(2).unwrap();
        assert!(pool.run(&|_| {}));
        assert!(pool.run(&|w| assert!(w.share_all(task(0, 1)).count() <= 1)));
    });
}

#[test]
fn a_phase_sees_what_the_one_before_it_wrote() {
    check(2, || {
        let mut pool = Pool::new(2).unwrap();
        let (first, second) = (Cells::<2>::new(), Cells::<2>::new());
        assert!(pool.run(&|w| {
            phase(w, 0, &first);
            phase(w, 1, &second);
            first.all(1);
        }));
        second.all(1);
    });
}

#[test]
fn a_thread_that_fails_ends_the_job_for_all_and_the_next_one_runs() {
    check(2, || {
        let mut pool = Pool::new(2).unwrap();
        assert!(!pool.run(&|w| {
            for item in w.share_all(task(0, 2)) {
                if item == 1 {
                    resume_unwind(Box::new("on purpose")); // without a message per order
                }
            }
            w.barrier();
            panic!("past a barrier that no thread can pass");
        }));
        let cells = Cells::<2>::new();
        assert!(pool.run(&|w| phase(w, 0, &cells)));
    });
}
