//! A pool whose threads run one job together, meeting at cheap barriers.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Spins before a waiting thread goes to sleep: some 100 microseconds.
const SPINS: usize = 2_000;
/// A sleeping thread looks up at least this often.
const NAP: Duration = Duration::from_millis(1);

/// A job: every thread calls it once with its own [`Worker`].
type Job<'a> = &'a (dyn Fn(&Worker<'_>) + Sync);

/// What the threads share.
struct State {
    threads: usize,
    /// Jobs started so far; a thread that sees it move takes the job.
    started: AtomicUsize,
    /// The current job, valid from the start of a job until all threads have finished it.
    job: Mutex<Option<Job<'static>>>,
    wake: Condvar,
    /// Threads at the current barrier, and barriers passed.
    arrived: AtomicUsize,
    generation: AtomicUsize,
    /// Threads that are through with the current job.
    finished: AtomicUsize,
    /// Threads that gave up spinning; an idle core may then run the one they wait for.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    up: Condvar,
    /// A thread panicked: whoever waits at a barrier gives up, and the job counts as failed.
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
}

impl Pool {
    pub(crate) fn new(threads: usize) -> Pool {
        let threads = threads.max(1);
        let state = Arc::new(State {
            threads,
            started: AtomicUsize::new(0),
            job: Mutex::new(None),
            wake: Condvar::new(),
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
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

    /// Runs `job` on all threads and waits for them. `false` if one of them panicked.
    pub(crate) fn run(&mut self, job: Job<'_>) -> bool {
        let state = &self.state;
        state.broken.store(false, Ordering::Relaxed);
        state.arrived.store(0, Ordering::Relaxed);
        state.finished.store(0, Ordering::Relaxed);
        // SAFETY: the reference is used only until all threads are finished, while `job` is still borrowed.
        let job: Job<'static> = unsafe { std::mem::transmute(job) };
        {
            let mut slot = state.job.lock().unwrap_or_else(PoisonError::into_inner);
            *slot = Some(job);
            state.started.fetch_add(1, Ordering::Release);
            state.wake.notify_all();
        }
        state.work(job, 0);
        state.wait_until(|| state.finished.load(Ordering::Acquire) == state.threads);
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
    /// A pool thread's life: wait for a job, do it, again.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            for _ in 0..SPINS {
                if self.started.load(Ordering::Acquire) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            let job = {
                let mut slot = self.job.lock().unwrap_or_else(PoisonError::into_inner);
                while self.started.load(Ordering::Acquire) == seen {
                    slot = self.wake.wait(slot).unwrap_or_else(PoisonError::into_inner);
                }
                *slot
            };
            seen += 1;
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if let Some(job) = job {
                self.work(job, index);
            }
        }
    }

    fn work(&self, job: Job<'_>, index: usize) {
        let worker = Worker { state: self, index };
        if catch_unwind(AssertUnwindSafe(|| job(&worker))).is_err() {
            self.broken.store(true, Ordering::Release);
        }
        self.finished.fetch_add(1, Ordering::AcqRel);
        self.wake_sleepers();
    }

    /// Waits for all threads, or gives up with them when one has failed.
    fn meet(&self) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation + 1, Ordering::Release);
            self.wake_sleepers();
            return;
        }
        let passed = || self.generation.load(Ordering::Acquire) != generation;
        self.wait_until(|| passed() || self.broken.load(Ordering::Acquire));
        if !passed() {
            std::panic::resume_unwind(Box::new("another thread of this step failed"));
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
    /// Waits until all threads are here: what was written before is seen by all after.
    pub(crate) fn barrier(&self) {
        if self.state.threads > 1 {
            self.state.meet();
        }
    }

    /// Parts of `0..items` for this thread, taken from a counter that all threads of the job share.
    pub(crate) fn share<'a>(
        &self,
        taken: &'a AtomicUsize,
        items: usize,
        grain: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'a> {
        std::iter::from_fn(move || {
            let start = taken.fetch_add(grain, Ordering::Relaxed);
            (start < items).then(|| start..(start + grain).min(items))
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
        for who in 0..3 {
            assert!(!pool.run(&|w| {
                assert!(w.index != who);
                w.barrier();
                w.barrier();
            }));
            assert!(pool.run(&|w| w.barrier()));
        }
    }
}
