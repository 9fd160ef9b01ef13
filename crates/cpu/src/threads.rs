//! A pool whose threads do the items of one job together, phase by phase.
//!
//! A phase ends when its items are done, not when all threads have come: one that lost its core holds up the others
//! only with the item in its hands, and finds the rest done when it is back.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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

/// A thread's counts, each in lines of its own: others read them, and mostly the thread alone writes them.
#[derive(Default)]
struct Counts {
    /// The last task that anybody took units of this thread's part of, and how many.
    taken: Line<AtomicU64>,
    /// Units that the thread has done in this job.
    done: Line<AtomicUsize>,
}

/// Processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

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
    /// What each thread has taken and done.
    counts: Box<[Counts]>,
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
    /// Units of all tasks so far.
    units: Cell<usize>,
    /// Those that this thread has done.
    done: Cell<usize>,
}

/// Work that threads share: `items` in units of `unit`, of which a thread takes up to `most` at a time.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    /// Tasks of a job are numbered in the order in which all threads come to them.
    pub(crate) index: usize,
    pub(crate) items: usize,
    pub(crate) unit: usize,
    pub(crate) most: usize,
}

/// Whose parts of a task a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Its own.
    Own,
    /// What others have left, one after the other.
    Others,
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
            counts: (0..threads).map(|_| Counts::default()).collect(),
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
        for Counts { taken, done } in &state.counts {
            taken.0.store(0, Ordering::Relaxed);
            done.0.store(0, Ordering::Relaxed);
        }
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
        let worker = Worker { state: self, index, units: Cell::new(0), done: Cell::new(0) };
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
    /// Waits until all units so far are done: what was written for them is seen after.
    pub(crate) fn barrier(&self) {
        let (state, units) = (self.state, self.units.get());
        state.counts[self.index].done.0.store(self.done.get(), Ordering::Release);
        state.wake_sleepers();
        // counts only grow: a sum of some of them that are old is too small
        let done = || state.counts.iter().map(|c| c.done.0.load(Ordering::Acquire)).sum::<usize>() >= units;
        state.wait_until(|| done() || state.broken.load(Ordering::Acquire));
        if !done() {
            std::panic::resume_unwind(Box::new("another thread of this step failed"));
        }
    }

    /// Ranges of a task's items that this thread is to do. Between two barriers all threads ask for their own parts of
    /// the same tasks in the same order, and then for those of others in that order: by then, whoever is late has left
    /// some.
    pub(crate) fn share<'a>(
        &'a self,
        task: Task,
        whose: Whose,
    ) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let (threads, units) = (self.state.threads, task.items.div_ceil(task.unit));
        let mut owners = match whose {
            Whose::Own => 0..1,
            Whose::Others => 1..threads,
        };
        if whose == Whose::Own {
            self.units.set(self.units.get() + units);
        }
        std::iter::from_fn(move || {
            loop {
                let owner = (self.index + owners.clone().next()?) % threads;
                let part = owner * units / threads..(owner + 1) * units / threads;
                let Some(taken) = self.state.counts[owner].take(task, part.len()) else {
                    owners.next();
                    continue;
                };
                self.done.set(self.done.get() + taken.len());
                let start = (part.start + taken.start) * task.unit;
                return Some(start..(start + taken.len() * task.unit).min(task.items));
            }
        })
    }

    /// All items of a task that has a phase to itself, one by one.
    pub(crate) fn share_all(&self, task: Task) -> impl Iterator<Item = usize> {
        [Whose::Own, Whose::Others].into_iter().flat_map(move |whose| self.share(task, whose)).flatten()
    }
}

impl Counts {
    /// Some of this thread's `units` of a task.
    fn take(&self, task: Task, units: usize) -> Option<Range<usize>> {
        let tag = (task.index as u64 + 1) << 32;
        let most = (task.most / task.unit).max(1);
        let mut taken = self.taken.0.load(Ordering::Relaxed);
        loop {
            // whoever comes to a later task has seen that nothing was left of this one
            let start = match (taken & !u64::from(u32::MAX)).cmp(&tag) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => (taken - tag) as usize,
                std::cmp::Ordering::Greater => return None,
            };
            let left = units.checked_sub(start).filter(|left| *left > 0)?;
            // not all at once: others may be done before
            let end = start + left.div_ceil(2).min(most);
            let next = tag + end as u64;
            match self.taken.0.compare_exchange_weak(taken, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..end),
                Err(now) => taken = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(index: usize, items: usize, unit: usize) -> Task {
        Task { index, items, unit, most: 2 * unit }
    }

    #[test]
    fn every_item_is_done_once_and_barriers_order_phases() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads);
            for round in 0..100 {
                // two tasks a phase
                let counts: Vec<[AtomicUsize; 50]> =
                    (0..8).map(|_| [const { AtomicUsize::new(0) }; 50]).collect();
                let ok = pool.run(&|w| {
                    for phase in 0..4 {
                        if (round + phase + w.index) % 7 == 0 {
                            std::thread::yield_now(); // others take what this one leaves
                        }
                        for whose in [Whose::Own, Whose::Others] {
                            for i in 2 * phase..2 * phase + 2 {
                                for item in w.share(task(i, 50 - i, 1 + i % 3), whose).flatten() {
                                    counts[i][item].fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        }
                        w.barrier();
                        for i in 0..2 * phase + 2 {
                            let done = |item: usize| counts[i][item].load(Ordering::Relaxed);
                            assert!((0..50).all(|item| done(item) == usize::from(item < 50 - i)));
                        }
                    }
                });
                assert!(ok);
            }
        }
    }

    #[test]
    fn a_panic_in_one_thread_fails_the_job_and_not_the_pool() {
        let mut pool = Pool::new(3);
        std::panic::set_hook(Box::new(|_| {}));
        for bad in 0..30 {
            assert!(!pool.run(&|w| {
                w.share_all(task(0, 30, 1)).for_each(|item| assert!(item != bad));
                w.barrier();
                assert!(w.share_all(task(1, 30, 1)).next().is_none(), "past a barrier that nobody passes");
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
            let in_time = AtomicUsize::new(0);
            assert!(pool.run(&|w| {
                if w.index == 1 && start.elapsed() < late {
                    return; // as if it had not come
                }
                for i in 0..50 {
                    in_time.fetch_add(w.share_all(task(i, 10, 1)).count(), Ordering::Relaxed);
                    w.barrier();
                }
            }));
            assert_eq!(in_time.into_inner(), 500);
        }
    }
}
