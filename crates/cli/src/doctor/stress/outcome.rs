//! The outcome of a stress run: counts, differences and failures.

use std::time::Duration;

use tern::engine::Stats;

use super::{Plan, Steps};

/// A text that differs from the text of the same request alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Difference {
    /// Index of the request in the pool.
    pub(crate) request: usize,
    /// Number of equal tokens before it.
    pub(crate) at: usize,
    pub(crate) got: u32,
}

/// A difference, how often it occurred and how close the choice was.
#[derive(Clone, Debug)]
pub(crate) struct Explained {
    pub(crate) difference: Difference,
    pub(crate) want: u32,
    pub(crate) prompt: usize,
    pub(crate) times: u64,
    /// None if the engine ended before it could be computed.
    pub(crate) gap: Option<f64>,
}

impl Explained {
    pub(crate) fn is_tie(&self, plan: &Plan) -> bool {
        plan.tie > 0.0 && self.gap.is_some_and(|gap| gap <= plan.tie)
    }
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The engine's message.
    Engine(String),
    /// There was no progress for this long.
    Hang(Duration),
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Requests that were run alone.
    pub(crate) alone: usize,
    /// Requests in mixes.
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    pub(crate) cancelled: u64,
    pub(crate) seconds: f64,
    pub(crate) differences: Vec<Explained>,
    pub(crate) failure: Option<Failure>,
    /// The engine's counters for the mixes.
    pub(crate) stats: Stats,
    pub(crate) steps: Steps,
}

impl Outcome {
    pub(crate) fn differing(&self) -> u64 {
        self.differences.iter().map(|d| d.times).sum()
    }

    pub(crate) fn ties(&self, plan: &Plan) -> u64 {
        self.differences.iter().filter(|d| d.is_tie(plan)).map(|d| d.times).sum()
    }

    pub(crate) fn largest_gap(&self) -> Option<f64> {
        self.differences.iter().filter_map(|d| d.gap).reduce(f64::max)
    }

    pub(crate) fn is_good(&self, plan: &Plan) -> bool {
        self.failure.is_none() && self.requests > 0 && self.ties(plan) == self.differing()
    }
}
