//! Watches a runner: how large its steps were, and when it last did something.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tern::engine::{Answer, Batch, Capacity, EngineError, Runner};

/// Steps by their number of tokens: 1, 2, 3, 4, and from there up to each power of two.
pub(crate) const SIZES: [usize; 12] = [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, usize::MAX];

/// What a runner did.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// As in `SIZES`.
    pub(crate) by_tokens: [u64; SIZES.len()],
    /// Sequences in the largest one.
    pub(crate) sequences: usize,
    /// Steps with a part of a prompt beside sequences that decode.
    pub(crate) mixed: u64,
    pub(crate) longest: Duration,
    /// When the last one was submitted or collected.
    pub(crate) last: Instant,
}

/// Reads what a [`Watched`] runner does.
#[derive(Clone, Debug)]
pub(crate) struct Watch(Arc<Mutex<Steps>>);

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch(Arc::new(Mutex::new(Steps {
            by_tokens: [0; SIZES.len()],
            sequences: 0,
            mixed: 0,
            longest: Duration::ZERO,
            last: Instant::now(),
        })))
    }

    /// Counts steps from here on; the longest one is kept.
    pub(crate) fn restart(&self) {
        let mut steps = self.lock();
        let longest = steps.longest;
        *steps = Steps { longest, ..Watch::new().steps() };
    }

    pub(crate) fn steps(&self) -> Steps {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A runner that is watched.
pub(crate) struct Watched<R> {
    pub(crate) runner: R,
    pub(crate) watch: Watch,
    /// When the steps in flight were submitted, the oldest first.
    pub(crate) in_flight: VecDeque<Instant>,
}

impl<R: Runner> Watched<R> {
    pub(crate) fn new(runner: R, watch: Watch) -> Watched<R> {
        Watched { runner, watch, in_flight: VecDeque::new() }
    }
}

impl<R: Runner> Runner for Watched<R> {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let now = Instant::now();
        let tokens = batch.tokens();
        let prompts = batch.entries.iter().filter(|e| e.tokens.len() > 1).count();
        let mut steps = self.watch.lock();
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
        let mut steps = self.watch.lock();
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
}
