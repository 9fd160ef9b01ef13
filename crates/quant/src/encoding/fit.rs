//! Blocks of 256 weights with two levels of scales: scales of groups are searched for
//! ([`search`](crate::encoding::search)), rounded under the scales of the block, and the codes are rounded
//! again under what is left of them.

use crate::MAX_BLOCK;
use crate::bits::through_f16;
use crate::encoding::importance::{Importance, squares};
use crate::encoding::search::{self, Block, Lanes, Steps, lanes, nearest_even};

/// The sum of each group, added in order.
pub(crate) fn sums<const N: usize, const G: usize>(by: &Block<N, G>) -> Lanes<G> {
    let mut sums = [0.0; G];
    for by in by {
        for g in 0..G {
            sums[g] += by[g];
        }
    }
    sums
}

/// `numerator / x`, or 0 for 0.
fn over(numerator: f32, x: f32) -> f32 {
    if x > 0.0 { numerator / x } else { 0.0 }
}

/// How the groups of a format with minima are fitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffineRules {
    /// The largest code, and the largest scale and minimum of a group.
    pub(crate) code_most: f32,
    pub(crate) scale_most: f32,
    /// Scales that are tried if columns have no importance.
    pub(crate) steps: Steps,
    /// Without an importance: whether the root mean square of the group is added to the
    /// magnitudes of its weights.
    pub(crate) with_mean: bool,
    /// With an importance: how often the mean square of the block is added to the squares of its weights.
    pub(crate) squares: f32,
}

/// A block whose groups have an unsigned scale and an unsigned minimum: `w = d*scale*code - dmin*min`.
pub(crate) struct AffineBlock<const G: usize> {
    pub(crate) d: f32,
    pub(crate) dmin: f32,
    pub(crate) scales: [u8; G],
    pub(crate) mins: [u8; G],
    pub(crate) codes: [u8; MAX_BLOCK],
}

impl<const G: usize> AffineBlock<G> {
    /// Fits groups of `N` weights.
    pub(crate) fn fit<const N: usize>(
        weights: &[f32],
        importance: Option<&Importance<'_>>,
        rules: &AffineRules,
    ) -> Self {
        let x: Block<N, G> = lanes(weights);
        let top = rules.scale_most;
        let (groups, d, dmin, scales, mins) = match importance {
            None => {
                let groups = search::affine(&x, &unweighted(weights, rules), rules.code_most, rules.steps);
                let most = |of: &Lanes<G>| of.iter().fold(0.0, |most, &v| if v > most { v } else { most });
                let round =
                    |of: &Lanes<G>, most: f32| of.map(|v| nearest_even(over(top, most) * v).min(top) as u8);
                let (scale, min) = (most(&groups.scale), most(&groups.min));
                let (scales, mins) = (round(&groups.scale, scale), round(&groups.min, min));
                (groups, scale / top, min / top, scales, mins)
            }
            Some(importance) => {
                let square = rules.squares * squares(weights) / weights.len() as f32;
                let by = lanes(&importance.by(weights, square));
                let groups = search::affine(&x, &by, rules.code_most, Steps::WEIGHTED);
                let sums = sums(&by);
                let (d, scales) = search::unsigned(&groups.scale, &sums, top);
                let (dmin, mins) = search::unsigned(&groups.min, &sums, top);
                (groups, d, dmin, scales, mins)
            }
        };
        let (d, dmin) = (through_f16(d), through_f16(dmin));
        let mut codes = [0; MAX_BLOCK];
        search::in_order(&groups.codes, &mut codes);
        for (g, (codes, weights)) in codes.chunks_exact_mut(N).zip(weights.chunks_exact(N)).enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            if scale == 0.0 {
                continue;
            }
            for (code, w) in codes.iter_mut().zip(weights) {
                *code = nearest_even((w + min) / scale).clamp(0.0, rules.code_most) as u8;
            }
        }
        Self { d, dmin, scales, mins, codes }
    }
}

/// What errors count if columns have no importance: magnitudes of weights.
fn unweighted<const N: usize, const G: usize>(weights: &[f32], rules: &AffineRules) -> Block<N, G> {
    let mut by = [0.0; MAX_BLOCK];
    for (by, weights) in by.chunks_exact_mut(N).zip(weights.chunks_exact(N)) {
        let mean = if rules.with_mean { (squares(weights) / N as f32).sqrt() } else { 0.0 };
        by.iter_mut().zip(weights).for_each(|(by, w)| *by = mean + w.abs());
    }
    lanes(&by)
}

/// Rounds weights to codes under the scales of their groups, stored plus `limit`; groups of
/// scale 0 keep their codes.
pub(crate) fn round_again<const N: usize>(
    weights: &[f32],
    scales: impl Iterator<Item = f32>,
    limit: f32,
    codes: &mut [u8; MAX_BLOCK],
) {
    let groups = codes.chunks_exact_mut(N).zip(weights.chunks_exact(N));
    for ((codes, weights), scale) in groups.zip(scales) {
        if scale == 0.0 {
            continue;
        }
        for (code, w) in codes.iter_mut().zip(weights) {
            *code = (nearest_even(w / scale).clamp(-limit, limit - 1.0) + limit) as u8;
        }
    }
}

/// A block of 32 weights under one scale: the scale, and codes that are stored plus `limit`.
pub(crate) fn weighted_symmetric(
    weights: &[f32],
    importance: &Importance<'_>,
    limit: f32,
) -> (f32, [u8; 32]) {
    let by: Block<32, 1> = lanes(&importance.by(weights, importance.row_square));
    let fit = search::symmetric(&lanes(weights), &by, limit);
    (fit.scale[0], fit.codes.map(|[code]| code as u8))
}

/// A block of 32 weights under one scale and above one minimum, with codes up to `most`.
pub(crate) fn weighted_affine(
    weights: &[f32],
    importance: &Importance<'_>,
    most: f32,
) -> (f32, f32, [u8; 32]) {
    let by: Block<32, 1> = lanes(&importance.by(weights, importance.row_square));
    let fit = search::affine(&lanes(weights), &by, most, Steps::WEIGHTED);
    (fit.scale[0], -fit.min[0], fit.codes.map(|[code]| code as u8))
}
