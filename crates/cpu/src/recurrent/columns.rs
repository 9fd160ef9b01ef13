//! One token of a recurrent op on a block of columns, and a thread's workspace.

use crate::math::exp;

/// Columns of a state's matrix that a thread updates together: 128 rows of them fit the first cache.
pub(super) const COLUMNS: usize = 32;

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
    pub(super) before: Vec<f32>,
    pub(super) key: Vec<f32>,
    pub(super) query: Vec<f32>,
}
