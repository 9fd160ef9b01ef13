//! A runner wrapper that records the sizes of steps and the time of the last progress.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tern::engine::{Answer, Batch, Capacity, EngineError, Runner};

/// Upper bounds of step sizes in tokens: 1 to 4, then powers of two.
pub(crate) const SIZES: [usize; 12] = [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, usize::MAX];

/// Statistics of a runner's steps.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// Number of steps per bound in [`SIZES`].
    pub(crate) by_tokens: [u64; SIZES.len()],
    /// The largest number of sequences in a step.
    pub(crate) sequences: usize,
    /// Steps with both prefill and decode.
    pub(crate) mixed: u64,
    pub(crate) longest: Duration,
    /// When a step was last submitted or collected.
    pub(crate) last: Instant,
}

/// Reads the statistics of a [`MonitoredRunner`].
#[derive(Clone, Debug)]
pub(crate) struct StepMonitor(Arc<Mutex<Steps>>);

impl StepMonitor {
    pub(crate) fn new() -> StepMonitor {
        StepMonitor(Arc::new(Mutex::new(Steps {
            by_tokens: [0; SIZES.len()],
            sequences: 0,
            mixed: 0,
            longest: Duration::ZERO,
            last: Instant::now(),
        })))
    }

    /// Resets the statistics except for the longest duration.
    pub(crate) fn restart(&self) {
        let mut steps = self.lock();
        let longest = steps.longest;
        *steps = Steps { longest, ..StepMonitor::new().steps() };
    }

    pub(crate) fn steps(&self) -> Steps {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A runner whose steps are recorded.
pub(crate) struct MonitoredRunner<R> {
    pub(crate) runner: R,
    pub(crate) monitor: StepMonitor,
    /// Submission times of the steps in flight, oldest first.
    pub(crate) in_flight: VecDeque<Instant>,
}

impl<R: Runner> MonitoredRunner<R> {
    pub(crate) fn new(runner: R, monitor: StepMonitor) -> MonitoredRunner<R> {
        MonitoredRunner { runner, monitor, in_flight: VecDeque::new() }
    }
}

impl<R: Runner> Runner for MonitoredRunner<R> {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let now = Instant::now();
        let tokens = batch.tokens();
        let prompts = batch.entries.iter().filter(|e| e.tokens.len() > 1).count();
        let mut steps = self.monitor.lock();
        steps.last = now;
        steps.by_tokens[SIZES.iter().position(|size| tokens <= *size).unwrap_or(0)] += 1;
        steps.sequences = steps.sequences.max(batch.entries.len());
        steps.mixed += u64::from(prompts > 0 && prompts < batch.entries.len());
        drop(steps);
        self.in_flight.push_back(now);
        self.runner.submit(batch)
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        let answers = self.runner.collect();
        let mut steps = self.monitor.lock();
        steps.last = Instant::now();
        if let Some(since) = self.in_flight.pop_front() {
            steps.longest = steps.longest.max(since.elapsed());
        }
        answers
    }

    fn runs_ahead(&self) -> bool {
        self.runner.runs_ahead()
    }

    fn capacity(&self) -> Capacity {
        self.runner.capacity()
    }

    fn vocab(&self) -> usize {
        self.runner.vocab()
    }

    fn adapters(&self) -> usize {
        self.runner.adapters()
    }
}
