//! Ops that treat each row by itself: norms and rotary embeddings.

use tern_graph::{NormKind, RopeStyle, RopeTable};

use crate::kernels::Kernels;

/// A norm over one group of columns.
pub(crate) struct Norm<'a> {
    pub(crate) weight: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) eps: f32,
    pub(crate) kind: NormKind,
}

impl Norm<'_> {
    pub(crate) fn apply(&self, kernels: &Kernels, x: &[f32], out: &mut [f32]) {
        let n = x.len() as f32;
        let (sum, squares) = (kernels.sums)(x);
        let (mean, var) = match self.kind {
            NormKind::Rms => (0.0, squares / n),
            NormKind::Layer => {
                let mean = sum / n;
                (mean, x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n)
            }
        };
        let scale = 1.0 / (var + self.eps).sqrt();
        for ((o, v), w) in out.iter_mut().zip(x).zip(self.weight) {
            *o = (v - mean) * scale * w;
        }
        if let Some(bias) = self.bias {
            out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
    }
}

/// Sines and cosines of one position, times the table's magnitude. `[pairs, 2]`
pub(crate) fn rotation(table: &RopeTable, position: usize, out: &mut [f32]) {
    for (freq, pair) in table.freqs.iter().zip(out.as_chunks_mut::<2>().0) {
        let (sin, cos) = (position as f32 * freq).sin_cos();
        *pair = [sin * table.magnitude, cos * table.magnitude];
    }
}

/// Rotates one head; columns past the pairs are copied.
pub(crate) fn rotate(head: &[f32], style: RopeStyle, rotation: &[f32], out: &mut [f32]) {
    out.copy_from_slice(head);
    let (pairs, _) = rotation.as_chunks::<2>();
    for (i, [sin, cos]) in pairs.iter().enumerate() {
        let (a, b) = match style {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::Halves => (i, i + pairs.len()),
        };
        out[a] = head[a] * cos - head[b] * sin;
        out[b] = head[a] * sin + head[b] * cos;
    }
}
