//! Rounding weights to codes: the steps that encoders share.

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
