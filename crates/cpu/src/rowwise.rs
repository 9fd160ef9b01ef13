//! Ops on single rows: norms and rotary embeddings.

use tern_graph::{NormKind, RopeStyle, RopeTable};

use crate::math::{deviations, sums};

/// A norm over one group of columns.
pub(crate) struct Norm<'a> {
    pub(crate) weight: Option<&'a [f32]>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) eps: f32,
    pub(crate) kind: NormKind,
}

impl Norm<'_> {
    #[inline(always)]
    pub(crate) fn apply(&self, x: &[f32], out: &mut [f32]) {
        let n = x.len() as f32;
        let (sum, squares) = sums(x);
        let (mean, var) = match self.kind {
            NormKind::Rms => (0.0, squares / n),
            NormKind::Layer => (sum / n, deviations(x, sum / n) / n),
        };
        let scale = 1.0 / (var + self.eps).sqrt();
        let each = out.iter_mut().zip(x);
        match self.weight {
            Some(weight) => each.zip(weight).for_each(|((o, v), w)| *o = (v - mean) * scale * w),
            None => each.for_each(|(o, v)| *o = (v - mean) * scale),
        }
        if let Some(bias) = self.bias {
            out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
    }
}

/// Sines of one position, by its parts, then cosines, times the table's magnitude. `[2, pairs]`
pub(crate) fn rotation(table: &RopeTable, turns: [usize; 3], out: &mut [f32]) {
    let (sines, cosines) = out.split_at_mut(table.freqs.len());
    for (pair, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
        let (sin, cos) = table.angle(pair, turns).sin_cos();
        (*sine, *cosine) = (sin * table.magnitude, cos * table.magnitude);
    }
}

/// Rotates one head; columns past the pairs are copied.
pub(crate) fn rotate(head: &[f32], style: RopeStyle, rotation: &[f32], out: &mut [f32]) {
    out.copy_from_slice(head);
    let pairs = rotation.len() / 2;
    let (sin, cos) = rotation.split_at(pairs);
    match style {
        RopeStyle::Interleaved => {
            let (head, out) = (&head.as_chunks::<2>().0[..pairs], &mut out.as_chunks_mut::<2>().0[..pairs]);
            for i in 0..pairs {
                let [a, b] = head[i];
                out[i] = [a * cos[i] - b * sin[i], a * sin[i] + b * cos[i]];
            }
        }
        RopeStyle::Halves => {
            let (a, b) = (&head[..pairs], &head[pairs..][..pairs]);
            let (out_a, out_b) = out.split_at_mut(pairs);
            let out_b = &mut out_b[..pairs];
            for i in 0..pairs {
                out_a[i] = a[i] * cos[i] - b[i] * sin[i];
                out_b[i] = a[i] * sin[i] + b[i] * cos[i];
            }
        }
    }
}
