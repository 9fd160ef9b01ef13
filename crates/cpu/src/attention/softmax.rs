//! Weights of scores, run by run.

use crate::math::exp;

/// Floats taken at a time.
const LANES: usize = 16;

/// The weights that softmax gave: their sum, and the score whose weight is one.
#[derive(Clone, Copy)]
pub(crate) struct SoftmaxStats {
    pub(crate) max: f32,
    pub(crate) sum: f32,
}

impl SoftmaxStats {
    /// Of no scores.
    pub(crate) const NONE: SoftmaxStats = SoftmaxStats { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Scores, capped where there is a cap, become `exp(x - max)`.
#[inline(always)]
pub(crate) fn softmax<const FUSED: bool>(x: &mut [f32], cap: Option<f32>) -> SoftmaxStats {
    if let Some(cap) = cap {
        for x in x.iter_mut() {
            let tanh = 1.0 - 2.0 / (1.0 + exp::<FUSED>(*x * 2.0 / cap)); // of x / cap
            *x = cap * tanh + *x * 0.0; // an infinite score stays no number
        }
    }
    let mut most = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks_mut::<LANES>();
    for part in &*whole {
        for i in 0..LANES {
            most[i] = if part[i] > most[i] { part[i] } else { most[i] };
        }
    }
    let max = most.iter().chain(&*rest).copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0f32; LANES];
    for part in whole {
        for i in 0..LANES {
            part[i] = exp::<FUSED>(part[i] - max);
            sums[i] += part[i];
        }
    }
    let mut sum = 0.0;
    for x in rest {
        *x = exp::<FUSED>(*x - max);
        sum += *x;
    }
    SoftmaxStats { max, sum: sums.iter().sum::<f32>() + sum }
}

/// Adds a run's sums to those of the runs before it.
pub(crate) fn join((total, results): (&mut SoftmaxStats, &mut [f32]), (mass, part): (SoftmaxStats, &[f32])) {
    if mass.sum == 0.0 {
        return; // nothing seen
    }
    // one of the two is one
    let (kept, added) = match mass.max > total.max {
        true => (exp::<false>(total.max - mass.max), 1.0),
        false => (1.0, exp::<false>(mass.max - total.max)),
    };
    let max = total.max.max(mass.max);
    *total = SoftmaxStats { max, sum: total.sum * kept + mass.sum * added };
    for (result, part) in results.iter_mut().zip(part) {
        *result = *result * kept + part * added;
    }
}
