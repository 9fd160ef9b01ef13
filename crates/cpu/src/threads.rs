//! A pool whose threads share the items of one job, phase by phase.
//!
//! A phase ends when its items are done, not when all threads have arrived: a thread that lost its core
//! delays the others only by the item it has taken.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LockResult, PoisonError};

use super::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, MutexGuard, Ordering,
    SPINS, fence, spin_loop,
};

/// A job: every thread that enters it calls it once with its own [`Worker`].
type Job<'a> = &'a (dyn Fn(&Worker<'_>) + Sync);

/// A thread's counters, each in separate cache lines: other threads read them, and mostly
/// this thread writes them.
#[derive(Default)]
struct Counts {
    /// The last task of which units of this thread's part were taken, and how many.
    taken: Line<AtomicU64>,
    /// Units that the thread has completed in this job.
    done: Line<AtomicUsize>,
}

/// Two cache lines, since processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

/// State shared by the threads.
struct State {
    threads: usize,
    idle_spins: usize,
    current: Mutex<Current>,
    wake: Condvar,
    /// The number of `current`, for spinning threads; which job they enter is decided under the lock.
    number: AtomicUsize,
    /// Pool threads in the current job. It grows only under the lock of `current`, while that holds a job.
    inside: AtomicUsize,
    /// What each thread has taken and completed.
    counts: Box<[Counts]>,
    /// Threads that sleep after spinning, which frees their cores for the thread they wait for.
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    awake: Condvar,
    /// A thread panicked: waiting threads stop waiting, and the job fails.
    broken: AtomicBool,
}

/// The current job. Its number is read together with it: a thread enters each job at most once.
struct Current {
    /// Jobs started so far.
    number: usize,
    /// Valid for threads inside the job; `None` once no more threads may enter.
    job: Option<Job<'static>>,
    stop: bool,
}

/// The pool. The thread that calls [`Pool::run`] is one of its threads.
pub(crate) struct Pool {
    state: Arc<State>,
    handles: Vec<JoinHandle<()>>,
}

/// The system could not start all requested threads.
#[derive(Debug)]
pub(crate) struct NoThreads {
    wanted: usize,
    given: usize,
    why: io::Error,
}

impl fmt::Display for NoThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoThreads { wanted, given, why } = self;
        write!(
            f,
            "{wanted} threads were asked for and the system gave {given}: {why}; use fewer (-t), or raise its limit \
             (ulimit -u or -v, or the container's limit of processes)"
        )
    }
}

/// One thread's view of a running job.
pub(crate) struct Worker<'a> {
    state: &'a State,
    /// 0 is the thread that called `run`.
    pub(crate) index: usize,
    /// Units of all tasks so far.
    units: Cell<usize>,
    /// Units that this thread has completed.
    done: Cell<usize>,
}

/// Work that threads share: `items` in units of `unit`, of which a thread takes up to `most` at a time.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    /// Tasks of a job are numbered in the order in which all threads reach them.
    pub(crate) index: usize,
    pub(crate) items: usize,
    pub(crate) unit: usize,
    pub(crate) most: usize,
}

/// Whose parts of a task a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This thread's.
    Own,
    /// Those of the other threads, one after the other.
    Others,
}

impl Pool {
    /// A pool of `threads` threads; an error if the system cannot start all of them.
    pub(crate) fn new(threads: usize) -> Result<Pool, NoThreads> {
        Pool::with_idle_spins(threads, SPINS)
    }

    /// The same with this number of spins before a thread without a job sleeps.
    pub(crate) fn with_idle_spins(threads: usize, idle_spins: usize) -> Result<Pool, NoThreads> {
        let threads = threads.max(1);
        let state = Arc::new(State {
            threads,
            idle_spins,
            current: Mutex::new(Current { number: 0, job: None, stop: false }),
            wake: Condvar::new(),
            number: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            counts: (0..threads).map(|_| Counts::default()).collect(),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            awake: Condvar::new(),
            broken: AtomicBool::new(false),
        });
        let spawn = |index: usize| {
            let state = Arc::clone(&state);
            Builder::new().name(format!("tern-cpu-{index}")).spawn(move || state.serve(index))
        };
        let mut pool = Pool { state: Arc::clone(&state), handles: Vec::with_capacity(threads) };
        for index in 1..threads {
            match spawn(index) {
                Ok(handle) => pool.handles.push(handle),
                Err(why) => return Err(NoThreads { wanted: threads, given: index, why }),
            }
        }
        Ok(pool)
    }

    pub(crate) fn threads(&self) -> usize {
        self.state.threads
    }

    /// Runs `job` on this thread and all others that enter in time. `false` if one of them panicked.
    pub(crate) fn run(&mut self, job: Job<'_>) -> bool {
        let state = &self.state;
        state.broken.store(false, Ordering::Relaxed);
        for Counts { taken, done } in &state.counts {
            taken.0.store(0, Ordering::Relaxed);
            done.0.store(0, Ordering::Relaxed);
        }
        // SAFETY: the reference is used only by threads inside, and none is when this function ends.
        let job: Job<'static> = unsafe { std::mem::transmute(job) };
        state.change(|current| current.job = Some(job));
        state.work(job, 0);
        state.current().job = None; // from here on `inside` only decreases
        state.wait_until(|| state.inside.load(Ordering::Acquire) == 0);
        !state.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.change(|current| current.stop = true);
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

impl State {
    fn current(&self) -> MutexGuard<'_, Current> {
        unpoisoned(self.current.lock())
    }

    /// Notifies the pool's threads of a new job or of the end.
    fn change(&self, change: impl FnOnce(&mut Current)) {
        let mut current = self.current();
        change(&mut current);
        current.number += 1;
        self.number.store(current.number, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// A pool thread's loop: waits for a job and takes part in it.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        while let Some(job) = self.enter(&mut seen) {
            self.work(job, index);
            self.inside.fetch_sub(1, Ordering::Release);
            self.wake_sleepers();
        }
    }

    /// Waits for a job that this thread has not seen, and enters it; `None` when the pool ends.
    fn enter(&self, seen: &mut usize) -> Option<Job<'static>> {
        loop {
            for _ in 0..self.idle_spins {
                if self.number.load(Ordering::Relaxed) != *seen {
                    break;
                }
                spin_loop();
            }
            let mut current = self.current();
            while current.number == *seen {
                current = unpoisoned(self.wake.wait(current));
            }
            if current.stop {
                return None;
            }
            *seen = current.number;
            if let Some(job) = current.job {
                self.inside.fetch_add(1, Ordering::Relaxed);
                return Some(job);
            }
            // too late for this job; the next one may follow soon
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

    /// Spins, then sleeps: on a busy machine the awaited thread may need this core.
    fn wait_until(&self, ready: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // with the fence in `wake_sleepers`: either this thread sees what it waits for, or
        // the other sees a sleeper
        fence(Ordering::SeqCst);
        let mut sleep = unpoisoned(self.sleep.lock());
        while !ready() {
            sleep = unpoisoned(self.awake.wait(sleep));
        }
        drop(sleep);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Called after every change that a thread may wait for.
    fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(unpoisoned(self.sleep.lock())); // a thread that has not seen the change is asleep by then
            self.awake.notify_all();
        }
    }
}

/// No thread panics while it holds one of the pool's locks.
fn unpoisoned<G>(guard: LockResult<G>) -> G {
    guard.unwrap_or_else(PoisonError::into_inner)
}

impl Worker<'_> {
    /// Waits until all units so far are complete; their writes are visible afterwards.
    pub(crate) fn barrier(&self) {
        let (state, units) = (self.state, self.units.get());
        state.counts[self.index].done.0.store(self.done.get(), Ordering::Release);
        state.wake_sleepers();
        // counters only grow: a sum of outdated ones is too small
        let done = || state.counts.iter().map(|c| c.done.0.load(Ordering::Acquire)).sum::<usize>() >= units;
        state.wait_until(|| done() || state.broken.load(Ordering::Acquire));
        if !done() {
            std::panic::resume_unwind(Box::new("another thread of this step failed"));
        }
    }

    /// Ranges of a task's items for this thread. Between two barriers all threads take their own parts of the
    /// same tasks in the same order, and then, in that order, what is left of the other threads' parts.
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
            // a thread that reaches a later task has seen that nothing is left of this one
            let start = match (taken & !u64::from(u32::MAX)).cmp(&tag) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => (taken - tag) as usize,
                std::cmp::Ordering::Greater => return None,
            };
            let left = units.checked_sub(start).filter(|left| *left > 0)?;
            // not all at once: other threads may finish earlier
            let end = start + left.div_ceil(2).min(most);
            let next = tag + end as u64;
            match self.taken.0.compare_exchange_weak(taken, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..end),
                Err(now) => taken = now,
            }
        }
    }
}
