//! A pool whose threads do the items of one job together, phase by phase.
//!
//! A phase ends when its items are done, not when all threads have come: one that lost its core holds up the others
//! only with the item in its hands, and finds the rest done when it is back.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Spins before a waiting thread goes to sleep: some 50 microseconds.
const SPINS: usize = 1_000;
/// A sleeping thread looks up at least this often.
const NAP: Duration = Duration::from_millis(1);
/// The job takes no more threads; below this bit of the gate stands how many are in it.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A job: every thread that comes in time calls it once with its own [`Worker`].
type Job<'a> = &'a (dyn Fn(&Worker<'_>) + Sync);

/// What the threads share.
struct State {
    threads: usize,
    /// Jobs started so far; a thread that sees it move comes to the gate.
    started: AtomicUsize,
    /// Threads in the current job, and whether it is closed.
    gate: AtomicUsize,
    /// The current job, valid for threads that are in it.
    job: Mutex<Option<Job<'static>>>,
    wake: Condvar,
    /// Items of the current job that are done.
    done: AtomicUsize,
    /// Threads that gave up spinning; an idle core may then run the one they wait for.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    up: Condvar,
    /// A thread panicked: whoever waits gives up, and the job counts as failed.
    broken: AtomicBool,
    stop: AtomicBool,
}

/// The pool. The thread that calls [`Pool::run`] is one of its threads.
pub(crate) struct Pool {
    state: Arc<State>,
    handles: Vec<JoinHandle<()>>,
}

/// One thread's view of a running job.
pub(crate) struct Worker<'a> {
    state: &'a State,
    /// 0 is the thread that called `run`.
    pub(crate) index: usize,
    /// Items of all phases so far.
    items: Cell<usize>,
    /// Those that this thread has done and not told of.
    untold: Cell<usize>,
}

impl Pool {
    pub(crate) fn new(threads: usize) -> Pool {
        let threads = threads.max(1);
        let state = Arc::new(State {
            threads,
            started: AtomicUsize::new(0),
            gate: AtomicUsize::new(CLOSED),
            job: Mutex::new(None),
            wake: Condvar::new(),
            done: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            up: Condvar::new(),
            broken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let spawn = |index: usize| {
            let state = Arc::clone(&state);
            std::thread::Builder::new().name(format!("tern-cpu-{index}")).spawn(move || state.serve(index))
        };
        // a machine that will not give more threads still runs, with those it gave
        let handles: Vec<_> = (1..threads).map_while(|i| spawn(i).ok()).collect();
        if handles.len() + 1 < threads {
            drop(Pool { state, handles });
            return Pool::new(1);
        }
        Pool { state, handles }
    }

    pub(crate) fn threads(&self) -> usize {
        self.state.threads
    }

    /// Runs `job` on this thread and all others that come in time. `false` if one of them panicked.
    pub(crate) fn run(&mut self, job: Job<'_>) -> bool {
        let state = &self.state;
        state.broken.store(false, Ordering::Relaxed);
        state.done.store(0, Ordering::Relaxed);
        // SAFETY: the reference is used only by threads in the gate, which is empty before this function ends.
        let job: Job<'static> = unsafe { std::mem::transmute(job) };
        {
            let mut slot = state.job.lock().unwrap_or_else(PoisonError::into_inner);
            *slot = Some(job);
            state.gate.fetch_and(!CLOSED, Ordering::Release);
            state.started.fetch_add(1, Ordering::Release);
            state.wake.notify_all();
        }
        state.work(job, 0);
        state.gate.fetch_or(CLOSED, Ordering::AcqRel);
        state.wait_until(|| state.gate.load(Ordering::Acquire) == CLOSED);
        !state.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _slot = self.state.job.lock().unwrap_or_else(PoisonError::into_inner);
            self.state.stop.store(true, Ordering::Release);
            self.state.started.fetch_add(1, Ordering::Release);
            self.state.wake.notify_all();
        }
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

impl State {
    /// A pool thread's life: wait for a job, take part in it, again.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            for _ in 0..SPINS {
                if self.started.load(Ordering::Acquire) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            {
                let mut slot = self.job.lock().unwrap_or_else(PoisonError::into_inner);
                while self.started.load(Ordering::Acquire) == seen {
                    slot = self.wake.wait(slot).unwrap_or_else(PoisonError::into_inner);
                }
                seen = self.started.load(Ordering::Acquire);
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if self.gate.fetch_add(1, Ordering::AcqRel) & CLOSED == 0 {
                let job = *self.job.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(job) = job {
                    self.work(job, index);
                }
            }
            self.gate.fetch_sub(1, Ordering::AcqRel);
            self.wake_sleepers();
        }
    }

    fn work(&self, job: Job<'_>, index: usize) {
        let worker = Worker { state: self, index, items: Cell::new(0), untold: Cell::new(0) };
        let all = || {
            job(&worker);
            worker.barrier();
        };
        if catch_unwind(AssertUnwindSafe(all)).is_err() {
            self.broken.store(true, Ordering::Release);
            self.wake_sleepers();
        }
    }

    /// Spins, then sleeps: on a busy machine the thread that is waited for may need this core.
    fn wait_until(&self, ready: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        while !ready() {
            bed = self.up.wait_timeout(bed, NAP).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(bed);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.up.notify_all();
        }
    }
}

impl Worker<'_> {
    /// Waits until all items so far are done: what was written for them is seen after.
    pub(crate) fn barrier(&self) {
        let (state, items) = (self.state, self.items.get());
        let untold = self.untold.take();
        if untold > 0 {
            state.done.fetch_add(untold, Ordering::AcqRel);
            state.wake_sleepers();
        }
        let done = || state.done.load(Ordering::Acquire) >= items;
        state.wait_until(|| done() || state.broken.load(Ordering::Acquire));
        if !done() {
            std::panic::resume_unwind(Box::new("another thread of this step failed"));
        }
    }

    /// Parts of `0..items` for this thread, taken from a counter that all threads of the job share. Each of them
    /// asks for the same items, one time.
    pub(crate) fn share<'a>(
        &'a self,
        taken: &'a AtomicUsize,
        items: usize,
        grain: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'a> {
        self.items.set(self.items.get() + items);
        let mut last = 0;
        std::iter::from_fn(move || {
            self.untold.set(self.untold.get() + std::mem::take(&mut last));
            let start = taken.fetch_add(grain, Ordering::Relaxed);
            let part = (start < items).then(|| start..(start + grain).min(items))?;
            last = part.len();
            Some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once_and_barriers_order_phases() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads);
            for _ in 0..200 {
                let sums: Vec<AtomicUsize> = (0..2).map(|_| AtomicUsize::new(0)).collect();
                let taken: Vec<AtomicUsize> = (0..2).map(|_| AtomicUsize::new(0)).collect();
                let ok = pool.run(&|w| {
                    for range in w.share(&taken[0], 100, 7) {
                        sums[0].fetch_add(range.sum(), Ordering::Relaxed);
                    }
                    w.barrier();
                    assert_eq!(sums[0].load(Ordering::Relaxed), 4950);
                    for range in w.share(&taken[1], 10, 1) {
                        sums[1].fetch_add(range.len(), Ordering::Relaxed);
                    }
                });
                assert!(ok);
                assert_eq!(sums[1].load(Ordering::Relaxed), 10);
            }
        }
    }

    #[test]
    fn a_panic_in_one_thread_fails_the_job_and_not_the_pool() {
        let mut pool = Pool::new(3);
        std::panic::set_hook(Box::new(|_| {}));
        for bad in 0..30 {
            let taken = [AtomicUsize::new(0), AtomicUsize::new(0)];
            assert!(!pool.run(&|w| {
                w.share(&taken[0], 30, 1).flatten().for_each(|item| assert!(item != bad));
                w.barrier();
                assert!(w.share(&taken[1], 30, 1).next().is_none(), "past a barrier that nobody passes");
            }));
            assert!(pool.run(&|w| w.barrier()));
        }
    }

    #[test]
    fn a_thread_that_is_late_holds_nobody_up() {
        let mut pool = Pool::new(2);
        let late = std::time::Duration::from_millis(200);
        let start = std::time::Instant::now();
        for _ in 0..20 {
            let taken: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
            let in_time = AtomicUsize::new(0);
            assert!(pool.run(&|w| {
                if w.index == 1 && start.elapsed() < late {
                    return; // as if it had not come
                }
                for taken in &taken {
                    w.share(taken, 10, 1).for_each(|r| {
                        in_time.fetch_add(r.len(), Ordering::Relaxed);
                    });
                    w.barrier();
                }
            }));
            assert_eq!(in_time.into_inner(), 500);
        }
    }
}
