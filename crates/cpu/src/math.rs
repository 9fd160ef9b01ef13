//! Loops over floats that the compiler vectorises at the width of the caller's instruction set.

use tern_graph::{Activation, Function, clamp};

/// `2^(x / ln 2)` by a polynomial, accurate to about one unit in the last place; vectorised at any width.
/// `FUSED` rounds each product and sum once.
#[inline(always)]
pub(crate) fn exp<const FUSED: bool>(x: f32) -> f32 {
    let mul_add = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let x = x.clamp(-87.3, 88.7);
    // 1.5 * 2^23: the integer is in the low bits
    let rounded = mul_add(x, std::f32::consts::LOG2_E, 12_582_912.0);
    let n = rounded - 12_582_912.0;
    let r = mul_add(n, 2.121_944_4e-4, mul_add(n, -0.693_359_4, x)); // ln 2 in two parts
    let p = mul_add(1.987_569_1e-4, r, 1.398_199_9e-3);
    let p = mul_add(p, r, 8.333_452e-3);
    let p = mul_add(p, r, 4.166_579_6e-2);
    let p = mul_add(p, r, 1.666_666_5e-1);
    let p = mul_add(p, r, 0.5);
    let y = mul_add(p * r, r, r) + 1.0;
    y * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

/// `x * (1 + erf(x / sqrt(2))) / 2`, with the error function by a polynomial (Abramowitz and Stegun, 7.1.26),
/// accurate to 1.5e-7.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let p = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    let rest = 0.5 * p * exp::<false>(-z * z); // the half of 1 - erf(z)
    x * if x < 0.0 { rest } else { 1.0 - rest }
}

/// GELU in its tanh form.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // tanh(z) = 1 - 2 / (1 + exp(2z))
    let z = 0.797_884_6 * x * (1.0 + 0.044_715 * x * x);
    x * (1.0 - 1.0 / (1.0 + exp::<false>(2.0 * z)))
}

#[inline(always)]
pub(crate) fn apply(function: Function, x: &[f32], out: &mut [f32]) {
    let each = out.iter_mut().zip(x);
    match function {
        Function::Gelu => each.for_each(|(o, &x)| *o = gelu(x)),
        Function::GeluTanh => each.for_each(|(o, &x)| *o = gelu_tanh(x)),
        Function::GeluQuick => {
            each.for_each(|(o, &x)| *o = x / (1.0 + exp::<false>(-Function::QUICK * x)));
        }
        // infinite values become NaN
        Function::Clamp(low, high) => each.for_each(|(o, &x)| *o = x.max(low).min(high) + x * 0.0),
        Function::Tanh => each.for_each(|(o, &x)| *o = 1.0 - 2.0 / (1.0 + exp::<false>(2.0 * x)) + x * 0.0),
    }
}

#[inline(always)]
pub(crate) fn gated(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let each = out.iter_mut().zip(gate.iter().zip(up));
    match act {
        Activation::Silu => each.for_each(|(o, (&g, &u))| *o = g / (1.0 + exp::<false>(-g)) * u),
        Activation::GeluTanh => each.for_each(|(o, (&g, &u))| *o = gelu_tanh(g) * u),
        Activation::Gelu => each.for_each(|(o, (&g, &u))| *o = gelu(g) * u),
        Activation::SwigluOai => each.for_each(|(o, (&g, &u))| {
            let (g, u) = clamp(g, u, Activation::OAI_LIMIT);
            *o = g / (1.0 + exp::<false>(-Activation::OAI_ALPHA * g)) * (u + 1.0);
        }),
        Activation::SwigluClamp(limit) => each.for_each(|(o, (&g, &u))| {
            let (g, u) = clamp(g, u, limit);
            *o = g / (1.0 + exp::<false>(-g)) * u;
        }),
        Activation::Sigmoid => each.for_each(|(o, (&g, &u))| *o = u / (1.0 + exp::<false>(-g))),
        Activation::Product => each.for_each(|(o, (&g, &u))| *o = g * u),
        Activation::Relu => each.for_each(|(o, (&g, &u))| *o = (g.max(0.0) + g * 0.0) * u),
        Activation::Relu2 => each.for_each(|(o, (&g, &u))| *o = g * g.max(0.0) * u),
    }
}

/// `sum(x)` and `sum(x^2)`
#[inline(always)]
pub(crate) fn sums(x: &[f32]) -> (f32, f32) {
    let (mut sum, mut squares) = ([0.0f32; 8], [0.0f32; 8]);
    let chunks = x.chunks_exact(8);
    let rest = chunks.remainder();
    for part in chunks {
        for i in 0..8 {
            sum[i] += part[i];
            squares[i] += part[i] * part[i];
        }
    }
    let rest = rest.iter().fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
    (sum.iter().sum::<f32>() + rest.0, squares.iter().sum::<f32>() + rest.1)
}

/// `sum((x - mean)^2)`
#[inline(always)]
pub(crate) fn deviations(x: &[f32], mean: f32) -> f32 {
    let mut squares = [0.0f32; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for part in whole {
        for i in 0..16 {
            squares[i] += (part[i] - mean) * (part[i] - mean);
        }
    }
    squares.iter().sum::<f32>() + rest.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>()
}
