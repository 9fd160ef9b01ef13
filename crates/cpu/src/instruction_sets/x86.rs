//! AVX2, AVX-512 with VNNI, and AMX.
//!
//! # Safety
//! Every `unsafe` function of this module requires the instruction set it is named for; `vectorised` lists
//! the kernels only if the processor has it.

use tern_graph::{Activation, Function};

use crate::activations::quantized_rows::{self, QuantizedRowsMut, Rounding};
use crate::attention::attend::{Attend, AttendWorkspace, AttentionKernels, Block};
use crate::attention::softmax::SoftmaxStats;
use crate::dot::x86;
use crate::kernels::{Kernels, QuantizeTiles, Tiles};
use crate::math;
use crate::recurrent::{self, ConvToken, StateToken};
use crate::rotation;
use crate::rowwise::Norm;

/// Plain loops compiled again for a wider instruction set.
macro_rules! widened {
    ($module:ident, $vector:ty, $features:literal) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn softmax_wide(x: &mut [f32], cap: Option<f32>) -> SoftmaxStats {
                crate::attention::softmax::softmax::<true>(x, cap)
            }
            #[target_feature(enable = $features)]
            unsafe fn gated_wide(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
                math::gated(act, gate, up, out);
            }
            #[target_feature(enable = $features)]
            unsafe fn apply_wide(function: Function, x: &[f32], out: &mut [f32]) {
                math::apply(function, x, out);
            }
            #[target_feature(enable = $features)]
            unsafe fn norm_wide(norm: &Norm<'_>, x: &[f32], out: &mut [f32]) {
                norm.apply(x, out);
            }
            #[target_feature(enable = $features)]
            unsafe fn sums_wide(x: &[f32]) -> (f32, f32) {
                math::sums(x)
            }

            #[target_feature(enable = $features)]
            unsafe fn advance_wide(state: &mut [f32], token: &StateToken<'_>, out: &mut [f32]) {
                recurrent::advance::<true>(state, token, out);
            }
            #[target_feature(enable = $features)]
            unsafe fn convolve_wide(token: &ConvToken<'_>, out: &mut [f32]) {
                recurrent::convolve::<true>(token, out);
            }
            #[target_feature(enable = $features)]
            unsafe fn hadamard_wide(x: &mut [f32], block: usize) {
                rotation::hadamard(x, block);
            }

            #[target_feature(enable = $features)]
            pub(super) unsafe fn attend(
                attend: &Attend<'_>,
                block: &Block<'_>,
                run: usize,
                workspace: &mut AttendWorkspace,
            ) {
                // SAFETY: the features are enabled; the contract of `Attend::run`.
                unsafe { attend.run::<$vector>(block, run, workspace) }
            }

            // SAFETY (all): `available` lists these kernels only where the features were detected.
            pub(super) fn softmax(x: &mut [f32], cap: Option<f32>) -> SoftmaxStats {
                // SAFETY: as above.
                unsafe { softmax_wide(x, cap) }
            }
            pub(super) fn gated(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { gated_wide(act, gate, up, out) }
            }
            pub(super) fn apply(function: Function, x: &[f32], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { apply_wide(function, x, out) }
            }
            pub(super) fn norm(norm: &Norm<'_>, x: &[f32], out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { norm_wide(norm, x, out) }
            }
            pub(super) fn sums(x: &[f32]) -> (f32, f32) {
                // SAFETY: as above.
                unsafe { sums_wide(x) }
            }
            pub(super) fn advance(state: &mut [f32], token: &StateToken<'_>, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { advance_wide(state, token, out) }
            }
            pub(super) fn convolve(token: &ConvToken<'_>, out: &mut [f32]) {
                // SAFETY: as above.
                unsafe { convolve_wide(token, out) }
            }
            pub(super) fn hadamard(x: &mut [f32], block: usize) {
                // SAFETY: as above.
                unsafe { hadamard_wide(x, block) }
            }
        }
    };
}

widened!(avx2, std::arch::x86_64::__m256, "avx2,fma,f16c");
widened!(avx512, std::arch::x86_64::__m512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

fn quantize_avx2(x: &[f32], rounding: Rounding, out: QuantizedRowsMut<'_>) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(x: &[f32], rounding: Rounding, out: QuantizedRowsMut<'_>) {
        quantized_rows::quantize(x, rounding, out);
    }
    // SAFETY: listed only if the processor has the features.
    unsafe { wide(x, rounding, out) }
}

static AVX2: Kernels = Kernels {
    name: "avx2",
    linear: x86::avx2::kernel,
    exact_f32: None,
    attention: AttentionKernels {
        run: avx2::attend,
        softmax: avx2::softmax,
        store_f16: x86::floats::store_f16,
    },
    gated: avx2::gated,
    apply: avx2::apply,
    norm: avx2::norm,
    quantize: quantize_avx2,
    tiles: Some(Tiles { from: 8, lanes: 8, quantize: QuantizeTiles::Whole(x86::avx2::quantize_lanes) }),
    advance: avx2::advance,
    convolve: avx2::convolve,
    hadamard: avx2::hadamard,
    sums: avx2::sums,
};

static AVX512: Kernels = Kernels {
    name: "avx512",
    linear: x86::avx512::kernel::<false>,
    exact_f32: None,
    attention: AttentionKernels {
        run: avx512::attend,
        softmax: avx512::softmax,
        store_f16: x86::floats::store_f16,
    },
    gated: avx512::gated,
    apply: avx512::apply,
    norm: avx512::norm,
    quantize: x86::avx512::quantize::quantize,
    tiles: None,
    advance: avx512::advance,
    convolve: avx512::convolve,
    hadamard: avx512::hadamard,
    sums: avx512::sums,
};

static AMX: Kernels = Kernels {
    name: "amx",
    linear: x86::avx512::kernel::<true>,
    exact_f32: Some(x86::avx512::EXACT_F32),
    tiles: Some(Tiles {
        from: 12,
        lanes: 16,
        quantize: QuantizeTiles::Rows(x86::avx512::quantize::quantize_row),
    }),
    ..AVX512
};

/// The ones this machine can run, best first.
pub(super) fn vectorised() -> Vec<&'static Kernels> {
    let mut found = vec![];
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni");
    if avx2 && avx512 {
        if x86::amx::probe::works() {
            found.push(&AMX);
        }
        found.push(&AVX512);
    }
    if avx2 {
        found.push(&AVX2);
    }
    found
}
