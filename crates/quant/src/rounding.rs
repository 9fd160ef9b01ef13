//! Rounding weights to codes: the steps that encoders share.
//!
//! [`Affine`] and [`Symmetric`] are the plain rounding encoders of the block formats with two levels of
//! scales: scales from the extremes of each group, codes to the nearest. ggml searches for better scales;
//! both write valid blocks.

use crate::MAX_BLOCK;
use crate::bits::through_f16;

/// `1 / x`, or 0 for 0.
pub(crate) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The weight farthest from zero, with its sign; the first of equals.
pub(crate) fn farthest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |far: f32, &w| if far.abs() < w.abs() { w } else { far })
}

/// The smallest and the largest weight.
pub(crate) fn extremes(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((f32::MAX, f32::MIN), |(low, high), &w| {
        (if w < low { w } else { low }, if w > high { w } else { high })
    })
}

/// Towards zero, with x86's result for values out of range: ggml's encoders rely on it if `1 / d` overflows.
pub(crate) fn truncate(x: f32) -> i32 {
    if x.abs() < 2_147_483_648.0 { x as i32 } else { i32::MIN }
}

/// `lround` as on x86-64: to the nearest, and zero in the low bits for values out of range.
pub(crate) fn nearest(x: f32) -> i32 {
    if x.abs() < 2_147_483_648.0 { x.round() as i32 } else { 0 }
}

/// The nearest integer from `low` to `high`; 0 for NaN.
pub(crate) fn round_to(x: f32, low: i8, high: i8) -> i8 {
    x.round().clamp(f32::from(low), f32::from(high)) as i8
}

/// A block whose groups have an unsigned scale and an unsigned minimum: `w = d*scale*code - dmin*min`.
pub(crate) struct Affine<const GROUPS: usize> {
    pub(crate) d: f32,
    pub(crate) dmin: f32,
    pub(crate) scales: [u8; GROUPS],
    pub(crate) mins: [u8; GROUPS],
    pub(crate) codes: [u8; MAX_BLOCK],
}

impl<const GROUPS: usize> Affine<GROUPS> {
    /// Fits codes up to `code_max` under scales and minima up to `scale_max`.
    pub(crate) fn fit(weights: &[f32], code_max: i8, scale_max: i8) -> Self {
        let group = weights.len() / GROUPS;
        let (mut spans, mut lows) = ([0f32; GROUPS], [0f32; GROUPS]);
        for (g, weights) in weights.chunks_exact(group).enumerate() {
            let (low, high) = extremes(weights);
            lows[g] = -low.min(0.0);
            spans[g] = (high.max(0.0) + lows[g]) / f32::from(code_max);
        }
        let top = f32::from(scale_max);
        let d = through_f16(farthest(&spans) / top);
        let dmin = through_f16(farthest(&lows) / top);
        let scales = spans.map(|span| round_to(span * inverse(d), 0, scale_max) as u8);
        let mins = lows.map(|low| round_to(low * inverse(dmin), 0, scale_max) as u8);
        let mut codes = [0; MAX_BLOCK];
        for (j, (code, &w)) in codes.iter_mut().zip(weights).enumerate() {
            let (scale, min) = (d * f32::from(scales[j / group]), dmin * f32::from(mins[j / group]));
            *code = round_to((w + min) * inverse(scale), 0, code_max) as u8;
        }
        Self { d, dmin, scales, mins, codes }
    }
}

/// A block whose groups have a signed scale: `w = d*scale*code`.
pub(crate) struct Symmetric<const GROUPS: usize> {
    pub(crate) d: f32,
    pub(crate) scales: [i8; GROUPS],
    pub(crate) codes: [i8; MAX_BLOCK],
}

impl<const GROUPS: usize> Symmetric<GROUPS> {
    /// Fits scales up to `scale_max`: the farthest weight of a group is at `lowest`, `code` rounds the rest.
    pub(crate) fn fit(weights: &[f32], lowest: f32, scale_max: i8, code: impl Fn(f32) -> i8) -> Self {
        let group = weights.len() / GROUPS;
        let mut wanted = [0f32; GROUPS];
        for (scale, weights) in wanted.iter_mut().zip(weights.chunks_exact(group)) {
            *scale = farthest(weights) / lowest;
        }
        let d = through_f16(farthest(&wanted).abs() / f32::from(scale_max));
        let scales = wanted.map(|scale| round_to(scale * inverse(d), -scale_max, scale_max));
        let mut codes = [0; MAX_BLOCK];
        for (j, (out, &w)) in codes.iter_mut().zip(weights).enumerate() {
            *out = code(w * inverse(d * f32::from(scales[j / group])));
        }
        Self { d, scales, codes }
    }
}
