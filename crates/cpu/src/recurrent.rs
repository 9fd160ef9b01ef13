//! Recurrent ops: convolutions, the delta rule and scans, one token after the other, on the
//! state slots of each slice.
//!
//! Threads share slices, heads and columns. A token is computed in the same way whichever tokens share its
//! step, so chunks of a prompt change no bit.

use std::ops::Range;

use tern_graph::{DeltaRule, MAX_TAPS, Op, SelectiveScan, StateSlots, Val, WeightId, sigmoid, softplus};

use crate::math::exp;
use crate::phases::Link;
use crate::run::Run;
use crate::state::State;

/// Columns of a state's matrix that a thread updates together: 128 rows of them fit the first cache.
const COLUMNS: usize = 32;
/// Columns of a convolution that a thread takes.
const CONV_COLUMNS: usize = 256;

/// One token's part in a block of columns of a state's matrix.
pub(crate) struct StateToken<'a> {
    /// Multiplies the rows of what is added. `[rows]`
    pub(crate) key: &'a [f32],
    /// Weights of the rows of the result. `[rows]`
    pub(crate) query: &'a [f32],
    /// What is added, before `strength`. `[columns]`
    pub(crate) value: &'a [f32],
    /// Factor on the state before.
    pub(crate) decay: f32,
    /// Factor on what is added.
    pub(crate) strength: f32,
    /// What the state already has for the key is subtracted from the value.
    pub(crate) corrects: bool,
}

/// The rows that a convolution reads for one token, and its taps.
pub(crate) struct ConvToken<'a> {
    /// Oldest first. `[taps][columns]`
    pub(crate) rows: &'a [&'a [f32]],
    /// The taps of each row. `[taps][columns]`
    pub(crate) taps: &'a [&'a [f32]],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) silu: bool,
}

/// `state = decay * state + key * added`, `out = state^T * query`. Equals the loops of the reference to
/// rounding. `state` is `[rows, columns]`.
#[inline(always)]
pub(crate) fn advance<const FUSED: bool>(state: &mut [f32], token: &StateToken<'_>, out: &mut [f32]) {
    match out.len() {
        COLUMNS => {
            let mut sums = [0.0; COLUMNS];
            let mut added = [0.0; COLUMNS];
            advance_columns::<FUSED>(state, token, &mut added, &mut sums);
            out.copy_from_slice(&sums);
        }
        columns => {
            let mut added = [0.0; COLUMNS];
            out.fill(0.0);
            advance_columns::<FUSED>(state, token, &mut added[..columns], out);
        }
    }
}

#[inline(always)]
fn advance_columns<const FUSED: bool>(
    state: &mut [f32],
    token: &StateToken<'_>,
    added: &mut [f32],
    sums: &mut [f32],
) {
    let mul_add = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let StateToken { decay, strength, .. } = *token;
    let columns = sums.len();
    if token.corrects {
        for (row, key) in state.chunks_exact(columns).zip(token.key) {
            for (known, s) in added.iter_mut().zip(row) {
                *known = mul_add(*s, *key, *known);
            }
        }
    }
    for (added, value) in added.iter_mut().zip(token.value) {
        *added = strength * (value - decay * *added);
    }
    for ((row, key), query) in state.chunks_exact_mut(columns).zip(token.key).zip(token.query) {
        for ((s, added), sum) in row.iter_mut().zip(added.iter()).zip(sums.iter_mut()) {
            *s = mul_add(*s, decay, key * added);
            *sum = mul_add(*s, *query, *sum);
        }
    }
}

/// The convolution of one token on some columns.
#[inline(always)]
pub(crate) fn convolve<const FUSED: bool>(token: &ConvToken<'_>, out: &mut [f32]) {
    let mul_add = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    out.fill(0.0);
    for (row, taps) in token.rows.iter().zip(token.taps) {
        for ((o, x), tap) in out.iter_mut().zip(*row).zip(*taps) {
            *o = mul_add(*x, *tap, *o);
        }
    }
    if let Some(bias) = token.bias {
        out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
    }
    if token.silu {
        out.iter_mut().for_each(|o| *o /= 1.0 + exp::<false>(-*o));
    }
}

/// A thread's workspace for recurrent ops.
#[derive(Default)]
pub(crate) struct RecurrentScratch {
    /// Rows before a slice. `[taps - 1, columns]`
    before: Vec<f32>,
    key: Vec<f32>,
    query: Vec<f32>,
}

/// The inputs of a delta rule.
struct Delta<'a> {
    qkv: Val,
    decay: Val,
    beta: Val,
    rate: &'a [f32],
    bias: &'a [f32],
    args: &'a DeltaRule,
}

/// The inputs of a scan.
struct Scan<'a> {
    xbc: Val,
    dt: Val,
    rate: &'a [f32],
    bias: &'a [f32],
    skip: &'a [f32],
    args: &'a SelectiveScan,
}

/// A block of columns of one head's matrix in one slice.
struct Block {
    rows: Range<usize>,
    head: usize,
    columns: Range<usize>,
}

impl Run<'_> {
    /// A recurrent op, on the slices and columns that this thread takes.
    pub(crate) fn recurrent<I: Iterator<Item = Range<usize>>>(
        &self,
        link: Link,
        scratch: &mut RecurrentScratch,
        share: impl Fn(usize) -> I,
    ) {
        if let Op::Conv { .. } = &self.program.graph.nodes[link.node].op {
            return self.conv(link, scratch, share);
        }
        let Some(state) = &self.program.state else { return self.refuse(link.node) };
        let vector = |id: WeightId| self.program.vector(id);
        match &self.program.graph.nodes[link.node].op {
            Op::Delta { qkv, decay, beta, weights, layer, args } => {
                let (rate, bias) = (vector(weights.rate), vector(weights.bias));
                let delta = Delta { qkv: *qkv, decay: *decay, beta: *beta, rate, bias, args };
                let shape = [args.v_heads, args.k_dim, args.v_dim];
                self.blocks(state, *layer, shape, share, |block, s| {
                    self.delta(link, &delta, &block, s, scratch);
                });
            }
            Op::Scan { xbc, dt, weights, layer, args } => {
                let [rate, bias, skip] = [weights.rate, weights.bias, weights.skip].map(vector);
                let scan = Scan { xbc: *xbc, dt: *dt, rate, bias, skip, args };
                let shape = [args.heads, args.state_dim, args.head_dim];
                self.blocks(state, *layer, shape, share, |block, s| self.scan(link, &scan, &block, s));
            }
            _ => self.refuse(link.node),
        }
    }

    /// Calls `run` with blocks of a layer of matrices `[heads, rows, columns]`, whose state is that before
    /// the slice; it is stored block after block.
    fn blocks<I: Iterator<Item = Range<usize>>>(
        &self,
        state: &State,
        layer: usize,
        [heads, rows, columns]: [usize; 3],
        share: impl Fn(usize) -> I,
        mut run: impl FnMut(Block, &mut [f32]),
    ) {
        let (slices, each) = (&self.step.slices, heads * columns.div_ceil(COLUMNS));
        let floats = heads * rows * columns;
        for item in share(slices.len() * each).flatten() {
            let (slice, part) = (item / each, item % each);
            let (head, first) = (part % heads, part / heads * COLUMNS);
            let block =
                Block { rows: self.rows_of(slice), head, columns: first..columns.min(first + COLUMNS) };
            let at = head * rows * columns + first * rows;
            let len = rows * block.columns.len();
            let StateSlots { read, write } = slices[slice].state.unwrap_or_default();
            let slot = |slot: u32| slot as usize * floats + at..slot as usize * floats + at + len;
            // SAFETY: see `work`; a block is one item, and no slice reads or writes the slot
            // that another one writes.
            let to = unsafe { state.layers[layer].get_mut(slot(write)) };
            match read {
                None => to.fill(0.0),
                Some(read) if read == write => {}
                // SAFETY: as above.
                Some(read) => to.copy_from_slice(unsafe { state.layers[layer].get(slot(read)) }),
            }
            run(block, to);
        }
    }

    fn delta(
        &self,
        link: Link,
        delta: &Delta<'_>,
        block: &Block,
        state: &mut [f32],
        scratch: &mut RecurrentScratch,
    ) {
        let (a, head) = (delta.args, block.head);
        let (width, k_width) = (a.width(), a.k_heads * a.k_dim);
        let key_head = a.key_head(head) * a.k_dim;
        let scale = 1.0 / (a.k_dim as f32).sqrt();
        scratch.key.resize(a.k_dim, 0.0);
        scratch.query.resize(a.k_dim, 0.0);
        for row in block.rows.clone() {
            let normed = |first: usize, scale: f32, out: &mut [f32]| {
                let x = self.read(delta.qkv, row * width + first + key_head, a.k_dim);
                let by = scale / ((self.kernels.sums)(x).1 + a.eps).sqrt();
                out.iter_mut().zip(x).for_each(|(o, x)| *o = x * by);
            };
            normed(0, scale, &mut scratch.query);
            normed(k_width, 1.0, &mut scratch.key);
            let first = 2 * k_width + head * a.v_dim + block.columns.start;
            let gate = row * a.v_heads + head;
            let token = StateToken {
                key: &scratch.key,
                query: &scratch.query,
                value: self.read(delta.qkv, row * width + first, block.columns.len()),
                decay: DeltaRule::decay(
                    delta.rate[head],
                    self.read(delta.decay, gate, 1)[0] + delta.bias[head],
                ),
                strength: sigmoid(self.read(delta.beta, gate, 1)[0]),
                corrects: true,
            };
            let at = gate * a.v_dim + block.columns.start;
            self.finish(link, at, block.columns.len(), |out| (self.kernels.advance)(state, &token, out));
        }
    }

    fn scan(&self, link: Link, scan: &Scan<'_>, block: &Block, state: &mut [f32]) {
        let (a, head) = (scan.args, block.head);
        let (width, inner) = (a.width(), a.heads * a.head_dim);
        let group = inner + a.group(head) * a.state_dim;
        for row in block.rows.clone() {
            let gate = row * a.heads + head;
            let dt = softplus(self.read(scan.dt, gate, 1)[0] + scan.bias[head]);
            let from = head * a.head_dim + block.columns.start;
            let x = self.read(scan.xbc, row * width + from, block.columns.len());
            let token = StateToken {
                key: self.read(scan.xbc, row * width + group, a.state_dim),
                query: self.read(scan.xbc, row * width + group + a.groups * a.state_dim, a.state_dim),
                value: x,
                decay: (scan.rate[head] * dt).exp(),
                strength: dt,
                corrects: false,
            };
            self.finish(link, row * inner + from, x.len(), |out| {
                (self.kernels.advance)(state, &token, out);
                out.iter_mut().zip(x).for_each(|(o, x)| *o += scan.skip[head] * x);
            });
        }
    }

    fn conv<I: Iterator<Item = Range<usize>>>(
        &self,
        link: Link,
        scratch: &mut RecurrentScratch,
        share: impl Fn(usize) -> I,
    ) {
        let Op::Conv { x, weight, bias, layer, silu } = self.program.graph.nodes[link.node].op else {
            return self.refuse(link.node);
        };
        let (width, taps) = (self.program.graph.width(x), self.program.graph.weight(weight).cols);
        // [taps, width], [width]
        let (weights, bias) = (self.program.vector(weight), bias.map(|b| self.program.vector(b)));
        let (slices, each, old) = (&self.step.slices, width.div_ceil(CONV_COLUMNS), taps - 1);
        let state = match (layer, &self.program.state) {
            (Some(layer), Some(state)) => Some(&state.layers[layer]),
            (Some(_), None) => return self.refuse(link.node),
            (None, _) => None,
        };
        // rows of the window before the token, which are outside the slice for its first ones
        let before_token = if state.is_some() { old } else { old / 2 };
        for item in share(slices.len() * each).flatten() {
            let (slice, first) = (item / each, item % each * CONV_COLUMNS);
            let (columns, rows) = (first..width.min(first + CONV_COLUMNS), self.rows_of(slice));
            let StateSlots { read, write } = slices[slice].state.unwrap_or_default();
            let slot = |slot: u32, row: usize| {
                let at = (slot as usize * old + row) * width;
                at + columns.start..at + columns.end
            };
            scratch.before.clear();
            for row in 0..old {
                match state.zip(read) {
                    // SAFETY: see `work`; some columns of a slice are one item, and no slice reads what
                    // another one writes.
                    Some((state, read)) => scratch.before.extend(unsafe { state.get(slot(read, row)) }),
                    None => scratch.before.resize(scratch.before.len() + columns.len(), 0.0),
                }
            }
            // a row by its number, counted from the first row before the slice; those after it are zeros, as
            // those before a text
            let before = &scratch.before;
            let window = |index: usize| match index.checked_sub(before_token) {
                Some(token) if token < rows.len() => {
                    self.read(x, (rows.start + token) * width + columns.start, columns.len())
                }
                _ => &before[index.min(before_token - 1) * columns.len()..][..columns.len()],
            };
            let each_tap = |tap: usize| &weights[tap.min(old) * width..][columns.clone()];
            let tap_rows: [&[f32]; MAX_TAPS] = std::array::from_fn(each_tap);
            for token in 0..rows.len() {
                let window: [&[f32]; MAX_TAPS] = std::array::from_fn(|tap| window(token + tap.min(old)));
                let conv = ConvToken {
                    rows: &window[..taps],
                    taps: &tap_rows[..taps],
                    bias: bias.map(|b| &b[columns.clone()]),
                    silu,
                };
                let at = (rows.start + token) * width + columns.start;
                self.finish(link, at, columns.len(), |out| (self.kernels.convolve)(&conv, out));
            }
            let Some(state) = state else { continue };
            for row in 0..old {
                // SAFETY: as above.
                unsafe { state.get_mut(slot(write, row)) }.copy_from_slice(window(rows.len() + row));
            }
        }
    }

    /// Rows of a slice's tokens.
    fn rows_of(&self, slice: usize) -> Range<usize> {
        let first: usize = self.step.slices[..slice].iter().map(|s| s.len).sum();
        first..first + self.step.slices[slice].len
    }
}
