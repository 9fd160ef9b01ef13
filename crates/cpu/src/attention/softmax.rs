//! Softmax over runs of scores, and the joining of runs.

use crate::math::exp;

/// Floats processed at a time.
const LANES: usize = 16;

/// Statistics of a softmax: the largest score, whose weight is one, and the sum of all weights.
#[derive(Clone, Copy)]
pub(crate) struct SoftmaxStats {
    pub(crate) max: f32,
    pub(crate) sum: f32,
}

impl SoftmaxStats {
    /// Those of no scores.
    pub(crate) const NONE: SoftmaxStats = SoftmaxStats { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Replaces scores, soft-capped if there is a cap, by `exp(x - max)`.
#[inline(always)]
pub(crate) fn softmax<const FUSED: bool>(x: &mut [f32], cap: Option<f32>) -> SoftmaxStats {
    if let Some(cap) = cap {
        for x in x.iter_mut() {
            let tanh = 1.0 - 2.0 / (1.0 + exp::<FUSED>(*x * 2.0 / cap)); // of x / cap
            *x = cap * tanh + *x * 0.0; // an infinite score becomes NaN
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

/// Joins a run's sums with those of the runs before it.
pub(crate) fn join(total: &mut SoftmaxStats, results: &mut [f32], run: SoftmaxStats, part: &[f32]) {
    if run.sum == 0.0 {
        return; // no positions
    }
    // one of the two factors is 1
    let (kept, added) = match run.max > total.max {
        true => (exp::<false>(total.max - run.max), 1.0),
        false => (1.0, exp::<false>(run.max - total.max)),
    };
    let max = total.max.max(run.max);
    *total = SoftmaxStats { max, sum: total.sum * kept + run.sum * added };
    for (result, part) in results.iter_mut().zip(part) {
        *result = *result * kept + part * added;
    }
}
