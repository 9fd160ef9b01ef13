//! The arguments of recurrent phases.

use tern_graph::{BackendError, KeyHeads};

use super::fused::{Conv, Recurrent, RecurrentRule};
use super::lowering::Lowering;
use crate::shared::{ConvArgs, MOST_STATE_ROWS, RecurrentArgs, View};

type Result<T> = std::result::Result<T, BackendError>;

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
