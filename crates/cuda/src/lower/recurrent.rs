//! Recurrent ops as phases: convolutions, delta rules and scans.

use tern_graph::{
    BackendError, DeltaRule, DeltaWeights, KeyHeads, ScanWeights, SelectiveScan, Val, WeightId,
};

use super::lowering::Lowering;
use crate::shared::{ConvArgs, MOST_STATE_ROWS, RecurrentArgs, View};

type Result<T> = std::result::Result<T, BackendError>;

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
    pub(super) fn reads(&self) -> Vec<Val> {
        let beta = match self.rule {
            RecurrentRule::Delta { beta, .. } => Some(beta),
            RecurrentRule::Scan { .. } => None,
        };
        [self.x, self.gate].into_iter().chain(beta).collect()
    }
}

impl Lowering<'_> {
    pub(super) fn conv(&self, c: &Conv) -> Result<ConvArgs> {
        let weight = self.graph.weight(c.weight);
        Ok(ConvArgs {
            x: self.view(c.x),
            y: self.out(c.out),
            taps: self.vector(Some(c.weight))?,
            bias: self.vector(c.bias)?,
            state: c.layer.map_or(Ok(0), |layer| self.state(layer))?,
            inputs: self.addresses.inputs,
            width: weight.rows as i32,
            taps_count: weight.cols as i32,
            silu: i32::from(c.silu),
            pad: 0,
        })
    }

    pub(super) fn recurrent(&self, r: &Recurrent) -> Result<RecurrentArgs> {
        let x = self.view(r.x);
        let common = RecurrentArgs {
            x,
            gate: self.view(r.gate),
            y: self.out(r.out),
            state: self.state(r.layer)?,
            inputs: self.addresses.inputs,
            slot: self.graph.states[r.layer].floats as i64,
            ..RecurrentArgs::default()
        };
        let args = match r.rule {
            RecurrentRule::Delta { beta, weights, args } => RecurrentArgs {
                beta: self.view(beta),
                rate: self.vector(Some(weights.rate))?,
                bias: self.vector(Some(weights.bias))?,
                heads: args.v_heads as i32,
                key_heads: args.k_heads as i32,
                rows: args.k_dim as i32,
                cols: args.v_dim as i32,
                key_at: (args.k_heads * args.k_dim) as i32,
                query_at: 0,
                value_at: (2 * args.k_heads * args.k_dim) as i32,
                grouped: i32::from(args.key_heads == KeyHeads::Grouped),
                eps: args.eps,
                ..common
            },
            RecurrentRule::Scan { weights, args } => RecurrentArgs {
                beta: View::default(),
                rate: self.vector(Some(weights.rate))?,
                bias: self.vector(Some(weights.bias))?,
                skip: self.vector(Some(weights.skip))?,
                heads: args.heads as i32,
                key_heads: args.groups as i32,
                rows: args.state_dim as i32,
                cols: args.head_dim as i32,
                key_at: (args.heads * args.head_dim) as i32,
                query_at: (args.heads * args.head_dim + args.groups * args.state_dim) as i32,
                value_at: 0,
                grouped: 1,
                ..common
            },
        };
        if args.rows as usize > MOST_STATE_ROWS {
            let rows = args.rows;
            return Err(BackendError::Unsupported(format!(
                "recurrent layers with a state of {rows} rows per head: at most {MOST_STATE_ROWS} are supported on GPUs"
            )));
        }
        let sizes = [args.rows, args.cols, args.key_at, args.query_at, args.value_at];
        let aligned = x.at.is_multiple_of(16) && x.stride % 4 == 0 && sizes.iter().all(|n| n % 4 == 0);
        Ok(RecurrentArgs { aligned: i32::from(aligned), ..args })
    }

    /// The slots of a state layer.
    fn state(&self, layer: usize) -> Result<u64> {
        let state = self.addresses.state.get(layer).copied();
        state.ok_or_else(|| BackendError::Invalid(format!("recurrent layer {layer} has no state slots")))
    }
}
