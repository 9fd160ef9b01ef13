//! The kernels of one instruction set, chosen once when the backend starts.

use tern_graph::Activation;
use tern_quant::Quant;

use crate::activations::quantized_rows::{self, IntsMut, Rounding};
use crate::activations::token_tiles::{LanesMut, TileRow};
use crate::attention::attend::{Attend, AttendRoom, Block};
use crate::attention::softmax::{Mass, softmax};
use crate::dot::{self, LinearKernel};
use crate::vectors::Plain;

/// One instruction set's version of everything that is worth vectorising.
///
/// All versions agree with [`SCALAR`]: exactly where results are defined lane by lane, to rounding elsewhere.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// `amx`, `avx512`, `avx2`, `neon` or `scalar`.
    pub name: &'static str,
    /// The row product for a format; `None` if the format cannot be run.
    pub(crate) linear: fn(&'static Quant) -> Option<LinearKernel>,
    /// One run of an attention: [`Attend::run`]
    pub(crate) attend: unsafe fn(&Attend<'_>, &Block<'_>, run: usize, &mut AttendRoom),
    /// Scores to weights: [`softmax`]
    pub(crate) softmax: fn(&mut [f32], cap: Option<f32>) -> Mass,
    /// To f16, rounded to nearest.
    pub(crate) store_f16: fn(x: &[f32], out: &mut [u16]),
    /// `act(gate) * up`
    pub(crate) gated: fn(Activation, gate: &[f32], up: &[f32], out: &mut [f32]),
    /// To integers.
    pub(crate) quantize: fn(x: &[f32], rounding: Rounding, out: IntsMut<'_>),
    /// Tiles of tokens, where there are kernels for them.
    pub(crate) tiles: Option<Tiles>,
    /// `sum(x)` and `sum(x^2)`
    pub(crate) sums: fn(&[f32]) -> (f32, f32),
}

/// How many tokens become one tile of integers.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    /// Tokens from which on tiles pay; fewer are quantised row by row.
    pub(crate) from: usize,
    /// Tokens of a tile.
    pub(crate) lanes: usize,
    pub(crate) quantize: QuantizeTiles,
}

/// How a tile is filled.
#[derive(Clone, Copy)]
pub(crate) enum QuantizeTiles {
    /// All tokens at once: [`crate::activations::token_tiles::quantize_tile`]
    Whole(fn(x: &[f32], width: (usize, Rounding), start: usize, out: LanesMut<'_>)),
    /// Token by token, where a value is made.
    Rows(fn(x: &[f32], rounding: Rounding, out: &TileRow<'_>)),
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Plain Rust, which every machine runs.
static SCALAR: Kernels = Kernels {
    name: "scalar",
    linear: dot::portable::scalar::kernel,
    attend: |attend, block, run, room| {
        // SAFETY: the caller's promise; plain vectors are everywhere.
        unsafe { attend.run::<Plain>(block, run, room) }
    },
    softmax: softmax::<false>,
    store_f16: dot::portable::scalar::store_f16,
    gated: gated_body,
    quantize: quantized_rows::quantize,
    tiles: None,
    sums: sums_body,
};

/// Plain loops compiled again for a wider instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! widened {
    ($module:ident, $vector:ty, $features:literal) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn softmax_wide(x: &mut [f32], cap: Option<f32>) -> Mass {
                super::softmax::<true>(x, cap)
            }
            #[target_feature(enable = $features)]
            unsafe fn gated_wide(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
                gated_body(act, gate, up, out);
            }
            #[target_feature(enable = $features)]
            unsafe fn sums_wide(x: &[f32]) -> (f32, f32) {
                sums_body(x)
            }

            #[target_feature(enable = $features)]
            pub(super) unsafe fn attend(
                attend: &Attend<'_>,
                block: &Block<'_>,
                run: usize,
                room: &mut AttendRoom,
            ) {
                // SAFETY: the features are on; the caller's promise.
                unsafe { attend.run::<$vector>(block, run, room) }
            }

            // SAFETY (all three): `available` lists these kernels only where the features were detected.
            pub(super) fn softmax(x: &mut [f32], cap: Option<f32>) -> Mass {
                // SAFETY: as above.
                unsafe { softmax_wide(x, cap) }
            }
            pub(super) fn gated(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { gated_wide(act, gate, up, out) }
            }
            pub(super) fn sums(x: &[f32]) -> (f32, f32) {
                // SAFETY: as above.
                unsafe { sums_wide(x) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
widened!(avx2, std::arch::x86_64::__m256, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
widened!(avx512, std::arch::x86_64::__m512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

#[cfg(target_arch = "x86_64")]
fn quantize_avx2(x: &[f32], rounding: Rounding, out: IntsMut<'_>) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(x: &[f32], rounding: Rounding, out: IntsMut<'_>) {
        quantized_rows::quantize(x, rounding, out);
    }
    // SAFETY: listed only where the features were detected.
    unsafe { wide(x, rounding, out) }
}

#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = Kernels {
    name: "avx2",
    linear: dot::x86::avx2::kernel,
    attend: avx2::attend,
    softmax: avx2::softmax,
    store_f16: dot::x86::floats::store_f16,
    gated: avx2::gated,
    quantize: quantize_avx2,
    tiles: Some(Tiles { from: 8, lanes: 8, quantize: QuantizeTiles::Whole(dot::x86::avx2::quantize_lanes) }),
    sums: avx2::sums,
};

#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = Kernels {
    name: "avx512",
    linear: dot::x86::avx512::kernel::<false>,
    attend: avx512::attend,
    softmax: avx512::softmax,
    gated: avx512::gated,
    quantize: dot::x86::avx512::quantize::quantize,
    tiles: None,
    sums: avx512::sums,
    ..AVX2
};

#[cfg(target_arch = "x86_64")]
static AMX: Kernels = Kernels {
    name: "amx",
    linear: dot::x86::avx512::kernel::<true>,
    tiles: Some(Tiles {
        from: 12,
        lanes: 16,
        quantize: QuantizeTiles::Rows(dot::x86::avx512::quantize::quantize_row),
    }),
    ..AVX512
};

/// The rest is plain: NEON is on in all code for aarch64.
#[cfg(target_arch = "aarch64")]
static NEON: Kernels = Kernels {
    name: "neon",
    linear: dot::neon::kernel,
    attend: |attend, block, run, room| {
        // SAFETY: the caller's promise; NEON is there on every aarch64.
        unsafe { attend.run::<std::arch::aarch64::float32x4_t>(block, run, room) }
    },
    softmax: softmax::<true>,
    store_f16: dot::neon::floats::store_f16,
    ..SCALAR
};

/// The kernels this machine can run, best first; the last is always the scalar one.
pub fn available() -> Vec<&'static Kernels> {
    let mut found = vec![];
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        if avx2 && avx512 {
            if dot::x86::amx::probe::works() {
                found.push(&AMX);
            }
            found.push(&AVX512);
        }
        if avx2 {
            found.push(&AVX2);
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        found.push(&NEON);
    }
    found.push(&SCALAR);
    found
}

/// `2^(x / ln 2)` by a polynomial, good to about one unit in the last place; vectorises at any width. `FUSED` rounds
/// once for each product and sum.
#[inline(always)]
pub(crate) fn exp<const FUSED: bool>(x: f32) -> f32 {
    let mul_add = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let x = x.clamp(-87.3, 88.7);
    let rounded = mul_add(x, std::f32::consts::LOG2_E, 12_582_912.0); // 1.5 * 2^23: the whole number is in the low bits
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

#[inline(always)]
fn gated_body(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let each = out.iter_mut().zip(gate.iter().zip(up));
    match act {
        Activation::Silu => each.for_each(|(o, (&g, &u))| *o = g / (1.0 + exp::<false>(-g)) * u),
        Activation::GeluTanh => each.for_each(|(o, (&g, &u))| {
            // tanh(z) = 1 - 2 / (1 + exp(2z))
            let z = 0.797_884_6 * g * (1.0 + 0.044_715 * g * g);
            *o = g * (1.0 - 1.0 / (1.0 + exp::<false>(2.0 * z))) * u;
        }),
        Activation::Relu2 => each.for_each(|(o, (&g, &u))| *o = g * g.max(0.0) * u),
    }
}

#[inline(always)]
fn sums_body(x: &[f32]) -> (f32, f32) {
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
