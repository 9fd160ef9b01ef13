//! Recurrent ops as phases: convolutions, delta rules and scans.

use tern_graph::{DeltaRule, DeltaWeights, ScanWeights, SelectiveScan, Val, WeightId};

/// A convolution whose last rows are state, or of whole texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conv {
    pub(crate) x: Val,
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
    /// Its state layer, or none if it is centred.
    pub(crate) layer: Option<usize>,
    pub(crate) silu: bool,
    pub(crate) out: Val,
}

/// A matrix per head, which each token decays, adds to and reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Recurrent {
    /// Keys, queries and values.
    pub(crate) x: Val,
    /// Decays or time steps.
    pub(crate) gate: Val,
    pub(crate) rule: RecurrentRule,
    /// Its state layer.
    pub(crate) layer: usize,
    pub(crate) out: Val,
}

/// What a token does to the matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RecurrentRule {
    Delta { beta: Val, weights: DeltaWeights, args: DeltaRule },
    Scan { weights: ScanWeights, args: SelectiveScan },
}

impl Recurrent {
    pub(in crate::lower) fn reads(&self) -> Vec<Val> {
        let beta = match self.rule {
            RecurrentRule::Delta { beta, .. } => Some(beta),
            RecurrentRule::Scan { .. } => None,
        };
        [self.x, self.gate].into_iter().chain(beta).collect()
    }
}
