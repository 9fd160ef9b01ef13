//! Integer products in AVX2: one loop for few tokens, one for many, and a [`Layout`] per format.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2, FMA and F16C. `instruction_sets` lists these kernels
//! only if the processor has them.

mod codebook;
mod general;
pub(crate) mod layouts;
pub(crate) mod low_bits;
mod many;
pub(crate) mod tiles;
mod wide;

use std::arch::x86_64::__m256;

use tern_quant::{self as quant, Quant};

use self::codebook::LookedUp;
use self::tiles::Layout;
use crate::activations::quantized_rows::{QuantizedRows, Rounding};
use crate::activations::token_tiles::{TokenTiles, TokenTilesMut, quantize_tile};
use crate::dot::portable::floats::{self, Bf16, F16, F32, FloatsWorkspace, Format};
use crate::dot::{IntegerKernel, KernelList, LinearKernel, Rows, Target, kernel_of};

/// A thread's memory for unpacked rows.
#[derive(Default)]
pub(crate) struct Workspace {
    panel: many::Panel,
    plain: Vec<general::PlainBlock>,
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn few<L: Layout>(rows: &Rows<'_>, x: &QuantizedRows<'_>, out: &mut [f32]) {
    // SAFETY: the features are enabled.
    unsafe { tiles::dot_rows_256::<L>(rows, x, out) }
}
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel<L: Layout>(
    rows: &Rows<'_>,
    x: &TokenTiles<'_>,
    workspace: &mut many::Panel,
    to: &Target<'_>,
) {
    // SAFETY: the features are enabled.
    unsafe { many::panel::<L, tiles::Avx2>(rows, x, workspace, to) }
}
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize(x: &[f32], width: usize, rounding: Rounding, start: usize, out: TokenTilesMut<'_>) {
    // SAFETY: the features are enabled.
    unsafe { quantize_tile::<tiles::Avx2>(x, width, rounding, start, out) }
}
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_rows<F: Format>(
    rows: &Rows<'_>,
    x: &[f32],
    workspace: &mut FloatsWorkspace,
    to: &Target<'_>,
) {
    // SAFETY: the features are enabled.
    unsafe { floats::dot::<__m256, F, 3>(rows, x, workspace, to) }
}

/// [`crate::activations::token_tiles::quantize_tile`]
pub(crate) fn quantize_lanes(
    x: &[f32],
    width: usize,
    rounding: Rounding,
    start: usize,
    out: TokenTilesMut<'_>,
) {
    // SAFETY: these kernels are listed only if the processor has the features.
    unsafe { quantize(x, width, rounding, start, out) }
}

const fn floats<F: Format>() -> LinearKernel {
    // SAFETY: as above.
    LinearKernel::F32(|rows, x, workspace, to| unsafe { float_rows::<F>(rows, x, &mut workspace.floats, to) })
}

const fn ints<L: Layout>() -> LinearKernel {
    LinearKernel::Integer(IntegerKernel {
        // SAFETY: as above.
        few: |rows, x, _, out| unsafe { few::<L>(rows, x, out) },
        // SAFETY: as above.
        many: Some(|rows, x, workspace, to| unsafe { panel::<L>(rows, x, &mut workspace.avx2.panel, to) }),
    })
}

/// Any format: rows are first unpacked by the format's own function.
pub(crate) fn general_kernel() -> LinearKernel {
    LinearKernel::Integer(IntegerKernel {
        few: |rows, x, workspace, out| {
            let rows = general::unpack(rows, x.cols, &mut workspace.avx2.plain);
            // SAFETY: as above.
            unsafe { few::<general::Plain>(&rows, x, out) }
        },
        many: Some(|rows, x, workspace, to| {
            let rows = general::unpack(rows, x.cols, &mut workspace.avx2.plain);
            // SAFETY: as above.
            unsafe { panel::<general::Plain>(&rows, x, &mut workspace.avx2.panel, to) }
        }),
    })
}

pub(crate) static KERNELS: &KernelList = &[
    (&quant::F32, floats::<F32>()),
    (&quant::F16, floats::<F16>()),
    (&quant::BF16, floats::<Bf16>()),
    (&quant::Q1_0, ints::<low_bits::Q1_0>()),
    (&quant::Q2_0, ints::<low_bits::Q2_0>()),
    (&quant::PQ2_0, ints::<low_bits::Pq2_0>()),
    (&quant::Q2_0_G128, ints::<low_bits::Pq2_0>()),
    (&quant::TQ2_0_G128, ints::<low_bits::Tq2_0G128>()),
    (&quant::TQ2_0, ints::<low_bits::Tq2_0>()),
    (&quant::TQ1_0, ints::<low_bits::Tq1_0>()),
    (&quant::PTQ1_0, ints::<low_bits::Ptq1_0>()),
    (&quant::I2_S, ints::<low_bits::I2S>()),
    (&quant::Q4_0, ints::<layouts::Q4_0>()),
    (&quant::Q4_1, ints::<layouts::Q4_1>()),
    (&quant::INT4_32, ints::<layouts::Int4G32>()),
    (&quant::INT4_128, ints::<layouts::Int4G128>()),
    (&quant::Q5_0, ints::<layouts::Q5_0>()),
    (&quant::Q5_1, ints::<layouts::Q5_1>()),
    (&quant::Q8_0, ints::<layouts::Q8_0>()),
    (&quant::Q2_K, ints::<layouts::Q2K>()),
    (&quant::Q3_K, ints::<layouts::Q3K>()),
    (&quant::Q4_K, ints::<layouts::Q4K>()),
    (&quant::Q5_K, ints::<layouts::Q5K>()),
    (&quant::Q6_K, ints::<layouts::Q6K>()),
    (&quant::IQ1_S, ints::<LookedUp<quant::Iq1S>>()),
    (&quant::IQ1_M, ints::<LookedUp<quant::Iq1M>>()),
    (&quant::IQ2_XXS, ints::<LookedUp<quant::Iq2Xxs>>()),
    (&quant::IQ2_XS, ints::<LookedUp<quant::Iq2Xs>>()),
    (&quant::IQ2_S, ints::<LookedUp<quant::Iq2S>>()),
    (&quant::IQ3_XXS, ints::<LookedUp<quant::Iq3Xxs>>()),
    (&quant::IQ3_S, ints::<LookedUp<quant::Iq3S>>()),
    (&quant::IQ4_NL, ints::<layouts::Iq4Nl>()),
    (&quant::IQ4_XS, ints::<layouts::Iq4Xs>()),
    (&quant::MXFP4, ints::<layouts::Mxfp4>()),
    (&quant::NVFP4, ints::<layouts::Nvfp4>()),
];

pub(crate) fn kernel(quant: &'static Quant) -> Option<LinearKernel> {
    kernel_of(KERNELS, general_kernel(), quant)
}
