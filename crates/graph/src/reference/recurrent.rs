//! The recurrent ops, one token after the other.

use crate::{DeltaRule, SelectiveScan, Slice, StateSlots, sigmoid, softplus};

/// The state before the tokens of each slice is given to `run` with the rows of the slice, and is stored
/// where the slice says.
fn each_slice(
    slices: &[Slice],
    state: &mut [f32],
    floats: usize,
    mut run: impl FnMut(std::ops::Range<usize>, &mut [f32]),
) {
    let mut row = 0;
    for slice in slices {
        let StateSlots { read, write } = slice.state.unwrap_or_default();
        let read = read.map(|slot| state[slot as usize * floats..][..floats].to_vec());
        let mut before = read.unwrap_or_else(|| vec![0.0; floats]);
        run(row..row + slice.len, &mut before);
        state[write as usize * floats..][..floats].copy_from_slice(&before);
        row += slice.len;
    }
}

/// A convolution: taps `[width][taps]`.
pub(super) struct Conv {
    pub(super) taps: Vec<f32>,
    pub(super) bias: Option<Vec<f32>>,
    pub(super) silu: bool,
}

impl Conv {
    pub(super) fn run(&self, slices: &[Slice], x: &[f32], width: usize, state: &mut [f32]) -> Vec<f32> {
        let old = self.taps.len() - width;
        let mut out = vec![];
        each_slice(slices, state, old, |rows, before| {
            let window = [&before[..], &x[rows.start * width..rows.end * width]].concat();
            out.extend(self.windows(&window, width));
            before.copy_from_slice(&window[rows.len() * width..]);
        });
        out
    }

    /// As many zeros before each text as after it.
    pub(super) fn run_centred(&self, slices: &[Slice], x: &[f32], width: usize) -> Vec<f32> {
        let beside = vec![0.0; (self.taps.len() - width) / 2];
        let (mut out, mut rest) = (vec![], x);
        for slice in slices {
            let (text, after) = rest.split_at(slice.len * width);
            out.extend(self.windows(&[&beside, text, &beside].concat(), width));
            rest = after;
        }
        out
    }

    /// Results of all whole windows of rows `[taps - 1 + tokens, width]`.
    fn windows(&self, rows: &[f32], width: usize) -> Vec<f32> {
        let taps = self.taps.len() / width;
        let tokens = rows.len() / width + 1 - taps;
        let mut out = vec![];
        for t in 0..tokens {
            for c in 0..width {
                let sum: f32 = (0..taps).map(|j| rows[(t + j) * width + c] * self.taps[c * taps + j]).sum();
                let y = sum + self.bias.as_ref().map_or(0.0, |b| b[c]);
                out.push(if self.silu { y * sigmoid(y) } else { y });
            }
        }
        out
    }
}

pub(super) fn delta(
    slices: &[Slice],
    [qkv, decay, beta]: [&[f32]; 3],
    [rate, bias]: &[Vec<f32>; 2],
    a: &DeltaRule,
    state: &mut [f32],
) -> Vec<f32> {
    let (width, k_width) = (a.width(), a.k_heads * a.k_dim);
    let mut out = vec![0.0; beta.len() * a.v_dim];
    each_slice(slices, state, a.v_heads * a.k_dim * a.v_dim, |rows, all| {
        for row in rows {
            let x = &qkv[row * width..][..width];
            for (h, s) in all.chunks_mut(a.k_dim * a.v_dim).enumerate() {
                let head = |first: usize| -> Vec<f32> {
                    let x = &x[first + a.key_head(h) * a.k_dim..][..a.k_dim];
                    let length = (x.iter().map(|x| x * x).sum::<f32>() + a.eps).sqrt();
                    x.iter().map(|x| x / length).collect()
                };
                let (q, k) = (head(0), head(k_width));
                let v = &x[2 * k_width + h * a.v_dim..][..a.v_dim];
                let gate = row * a.v_heads + h;
                let (factor, strength) =
                    (DeltaRule::decay(rate[h], decay[gate] + bias[h]), sigmoid(beta[gate]));
                s.iter_mut().for_each(|s| *s *= factor);
                for j in 0..a.v_dim {
                    let known: f32 = (0..a.k_dim).map(|i| s[i * a.v_dim + j] * k[i]).sum();
                    let d = strength * (v[j] - known);
                    (0..a.k_dim).for_each(|i| s[i * a.v_dim + j] += k[i] * d);
                    let sum: f32 = (0..a.k_dim).map(|i| s[i * a.v_dim + j] * q[i]).sum();
                    out[gate * a.v_dim + j] = sum / (a.k_dim as f32).sqrt();
                }
            }
        }
    });
    out
}

pub(super) fn scan(
    slices: &[Slice],
    [xbc, dt]: [&[f32]; 2],
    [rate, bias, skip]: &[Vec<f32>; 3],
    a: &SelectiveScan,
    state: &mut [f32],
) -> Vec<f32> {
    let (width, inner, bc) = (a.width(), a.heads * a.head_dim, a.groups * a.state_dim);
    let mut out = vec![0.0; dt.len() * a.head_dim];
    each_slice(slices, state, inner * a.state_dim, |rows, all| {
        for row in rows {
            let values = &xbc[row * width..][..width];
            for (h, s) in all.chunks_mut(a.state_dim * a.head_dim).enumerate() {
                let group = a.group(h) * a.state_dim;
                let x = &values[h * a.head_dim..][..a.head_dim];
                let (b, c) = (&values[inner + group..][..a.state_dim], &values[inner + bc + group..]);
                let head = row * a.heads + h;
                let dt = softplus(dt[head] + bias[h]);
                let factor = (rate[h] * dt).exp();
                for j in 0..a.head_dim {
                    let mut sum = 0.0;
                    for i in 0..a.state_dim {
                        let s = &mut s[i * a.head_dim + j];
                        *s = *s * factor + b[i] * (dt * x[j]);
                        sum += *s * c[i];
                    }
                    out[head * a.head_dim + j] = sum + skip[h] * x[j];
                }
            }
        }
    });
    out
}
