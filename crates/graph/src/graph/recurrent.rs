//! The recurrent ops: their sizes, and graphs that contain them with checked shapes. Each
//! opens its own state layer.

use crate::graph::{Result, fail};
use crate::{Graph, Op, StateLayer, Val, Value, WeightId};

/// Taps of a convolution at most.
pub const MAX_TAPS: usize = 8;

/// The sizes of a gated delta rule.
///
/// Per value head, with the query and key of a key head, both divided by `sqrt(sum of squares + eps)`, and
/// the query also by `sqrt(k_dim)`: `S = exp(rate * softplus(decay + bias)) * S`,
/// `d = sigmoid(beta) * (v - S^T k)`, `S = S + k d^T` and `out = S^T q`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaRule {
    /// Query and key heads.
    pub k_heads: usize,
    /// Value heads, a multiple of `k_heads`.
    pub v_heads: usize,
    /// Columns of a query or key head.
    pub k_dim: usize,
    /// Columns of a value head.
    pub v_dim: usize,
    /// Added to the sums of squares.
    pub eps: f32,
    /// Which key head a value head uses.
    pub key_heads: KeyHeads,
}

/// One value per value head each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaWeights {
    /// Factor on the decays.
    pub rate: WeightId,
    /// Added to the decays before their function.
    pub bias: WeightId,
}

/// The key head of a value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// `value head mod key heads`
    Tiled,
    /// Consecutive value heads share a key head.
    Grouped,
}

impl DeltaRule {
    /// Columns of queries, keys and values side by side.
    pub fn width(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim
    }

    /// The key head that a value head uses.
    pub fn key_head(&self, head: usize) -> usize {
        match self.key_heads {
            KeyHeads::Tiled => head % self.k_heads,
            KeyHeads::Grouped => head / (self.v_heads / self.k_heads),
        }
    }

    /// The factor on the state of a head.
    pub fn decay(rate: f32, decay: f32) -> f32 {
        (rate * softplus(decay)).exp()
    }
}

/// The sizes of a Mamba-2 scan.
///
/// Per head, with the `B` and `C` of its group: `dt = softplus(dt + bias)`,
/// `S = exp(rate * dt) * S + B (dt * x)^T` and `out = S^T C + skip * x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectiveScan {
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Groups of consecutive heads that share `B` and `C`.
    pub groups: usize,
    /// Columns of `B` and `C` per group.
    pub state_dim: usize,
}

impl SelectiveScan {
    /// Columns of `x`, `B` and `C` side by side.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim + 2 * self.groups * self.state_dim
    }

    /// The group of a head.
    pub fn group(&self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }
}

/// One value per head each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanWeights {
    /// Factor on the time steps.
    pub rate: WeightId,
    /// Added to the time steps before their function.
    pub bias: WeightId,
    /// Factor on what is added to the result.
    pub skip: WeightId,
}

/// `ln(1 + exp(x))`
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `1 / (1 + exp(-x))`
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Graph {
    /// See [`Op::Conv`]. Opens a new state layer.
    pub fn conv(&mut self, x: Val, weight: WeightId, bias: Option<WeightId>, silu: bool) -> Result<Val> {
        let (taps, width) = self.check_conv(x, weight, bias)?;
        let layer = Some(self.state_layer("conv", &[taps - 1, width])?);
        Ok(self.push(Op::Conv { x, weight, bias, layer, silu }, self.value(x)))
    }

    /// See [`Op::Conv`]: sees as many tokens after a token as before it, so texts are whole.
    pub fn centred_conv(&mut self, x: Val, weight: WeightId) -> Result<Val> {
        let (taps, _) = self.check_conv(x, weight, None)?;
        if taps.is_multiple_of(2) {
            let name = &self.weight(weight).name;
            return fail(format!("{name}: {taps} taps, a centred convolution has an odd number"));
        }
        Ok(self.push(Op::Conv { x, weight, bias: None, layer: None, silu: false }, self.value(x)))
    }

    /// Taps and columns of a convolution.
    fn check_conv(&self, x: Val, weight: WeightId, bias: Option<WeightId>) -> Result<(usize, usize)> {
        self.check_tokens("conv", x)?;
        let (w, width) = (self.weight(weight), self.width(x));
        if w.rows != width {
            return fail(format!("{}: a convolution of {} columns on a value of {width}", w.name, w.rows));
        }
        let taps = w.cols;
        if !(2..=MAX_TAPS).contains(&taps) {
            return fail(format!("{}: {taps} taps, want 2 to {MAX_TAPS}", w.name));
        }
        self.check_vector(bias, width)?;
        Ok((taps, width))
    }

    /// See [`Op::Delta`]. Opens a new state layer.
    pub fn delta(
        &mut self,
        qkv: Val,
        decay: Val,
        beta: Val,
        weights: DeltaWeights,
        args: DeltaRule,
    ) -> Result<Val> {
        let DeltaRule { k_heads, v_heads, k_dim, v_dim, .. } = args;
        if k_heads == 0 || k_dim == 0 || v_dim == 0 || v_heads == 0 || !v_heads.is_multiple_of(k_heads) {
            return fail(format!(
                "delta: {v_heads} value heads of {v_dim} and {k_heads} key heads of {k_dim}"
            ));
        }
        self.check_width("delta", qkv, args.width())?;
        self.check_width("delta", decay, v_heads)?;
        self.check_width("delta", beta, v_heads)?;
        self.check_len(weights.rate, v_heads)?;
        self.check_len(weights.bias, v_heads)?;
        let layer = self.state_layer("delta", &[v_heads, k_dim, v_dim])?;
        let value = Value { width: v_heads * v_dim, outputs_only: false };
        Ok(self.push(Op::Delta { qkv, decay, beta, weights, layer, args }, value))
    }

    /// See [`Op::Scan`]. Opens a new state layer.
    pub fn scan(&mut self, xbc: Val, dt: Val, weights: ScanWeights, args: SelectiveScan) -> Result<Val> {
        let SelectiveScan { heads, head_dim, groups, state_dim } = args;
        if groups == 0 || head_dim == 0 || state_dim == 0 || heads == 0 || !heads.is_multiple_of(groups) {
            return fail(format!("scan: {heads} heads of {head_dim} in {groups} groups of {state_dim}"));
        }
        self.check_width("scan", xbc, args.width())?;
        self.check_width("scan", dt, heads)?;
        for id in [weights.rate, weights.bias, weights.skip] {
            self.check_len(id, heads)?;
        }
        let layer = self.state_layer("scan", &[heads, state_dim, head_dim])?;
        let value = Value { width: heads * head_dim, outputs_only: false };
        Ok(self.push(Op::Scan { xbc, dt, weights, layer, args }, value))
    }

    /// See [`Op::GateRows`].
    pub fn gate_rows(&mut self, x: Val, gate: Val) -> Result<Val> {
        let one = Value { width: 1, ..self.value(x) };
        if self.value(gate) != one {
            return fail(format!("gate_rows: want one column per row, got {}", self.width(gate)));
        }
        Ok(self.push(Op::GateRows { x, gate }, self.value(x)))
    }

    fn state_layer(&mut self, op: &str, sizes: &[usize]) -> Result<usize> {
        let floats = sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        let Some(floats) = floats.filter(|floats| *floats <= u32::MAX as usize) else {
            return fail(format!("{op}: a state of {sizes:?} floats is too large"));
        };
        self.states.push(StateLayer { floats });
        Ok(self.states.len() - 1)
    }

    fn check_width(&self, op: &str, x: Val, width: usize) -> Result<()> {
        self.check_tokens(op, x)?;
        if self.width(x) != width {
            return fail(format!("{op}: want a value of {width} columns, got {}", self.width(x)));
        }
        Ok(())
    }

    /// Refuses a weight of another number of values, in whatever shape.
    fn check_len(&self, id: WeightId, len: usize) -> Result<()> {
        let w = self.weight(id);
        if w.rows * w.cols != len {
            return fail(format!("{}: want {len} values, declared as {}", w.name, w.shape()));
        }
        Ok(())
    }
}
