//! Integer products in AVX-512 with VNNI, and in AMX: weights are packed, by a [`Packing`] per format.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2, FMA, F16C and AVX-512 F, BW, VL, DQ and VNNI, those
//! with tiles also AMX. `instruction_sets` lists these kernels only if the processor has them.

pub(crate) mod codebook;
pub(crate) mod lookup;
pub(crate) mod packed;
pub(crate) mod packing;
pub(crate) mod quantize;
pub(crate) mod scaling;

use std::arch::x86_64::__m512;

use tern_quant::{self as quant, Quant};

use self::codebook::Indexed;
use self::packing::Packing;
use super::amx;
use super::amx::float_panels::{self, FloatPanels};
use crate::activations::quantized_rows::QuantizedRows;
use crate::activations::token_tiles::TokenTiles;
use crate::dot::portable::floats::{self, Bf16, F16, F32, FloatsWorkspace, Format};
use crate::dot::portable::packed::PackedMany;
use crate::dot::{
    KernelList, LinearKernel, PackedDot, PackedKernel, PackedWorkspace, Rows, Target, kernel_of,
};
use crate::memory::lines::Line;

macro_rules! with_features {
    ($(fn $name:ident$(<$p:ident>)?($($arg:ident: $type:ty),*) = $call:expr;)*) => {
        $(#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
        unsafe fn $name$(<$p: Packing>)?($($arg: $type),*) {
            // SAFETY: the features are enabled.
            unsafe { $call }
        })*
    };
}

with_features! {
    fn pack<P>(rows: &Rows<'_>, cols: usize, out: &mut [Line]) = packing::pack::<P>(rows, cols, out);
    fn dot_with_tiles<P>(
        panels: &[Line],
        rows: usize,
        x: &TokenTiles<'_>,
        workspace: &mut PackedWorkspace,
        to: &Target<'_>
    ) = amx::ints::dot::<P>(panels, rows, x, workspace, to);
    fn dot<P>(panels: &[Line], rows: usize, x: &QuantizedRows<'_>, workspace: &mut PackedWorkspace, to: &Target<'_>) =
        if lookup::suits::<P>(x) {
            lookup::dot::<P>(panels, rows, x, workspace, to)
        } else {
            packed::dot::<P>(panels, rows, x, to)
        };
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn float_rows<F: Format>(
    rows: &Rows<'_>,
    x: &[f32],
    workspace: &mut FloatsWorkspace,
    to: &Target<'_>,
) {
    // SAFETY: the features are enabled.
    unsafe { floats::dot::<__m512, F, 6>(rows, x, workspace, to) }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn pack_floats<F: FloatPanels>(rows: &Rows<'_>, cols: usize, out: &mut [Line]) {
    // SAFETY: the features are enabled.
    unsafe { float_panels::pack::<F>(rows, cols, out) }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn dot_floats<F: FloatPanels>(
    panels: &[Line],
    shape: (usize, usize),
    x: &[f32],
    workspace: &mut PackedWorkspace,
    to: &Target<'_>,
) {
    // SAFETY: the features are enabled.
    unsafe { amx::floats::dot::<F>(panels, shape, x, workspace, to) }
}

const fn floats_with_tiles<F: FloatPanels>() -> LinearKernel {
    LinearKernel::Packed(PackedKernel {
        lines: float_panels::lines::<F>,
        // SAFETY: this kernel is listed only if the processor has the features.
        pack: |rows, cols, out| unsafe { pack_floats::<F>(rows, cols, out) },
        // SAFETY: as above.
        dot: PackedDot::Floats(|panels, shape, x, workspace, to| unsafe {
            dot_floats::<F>(panels, shape, x, workspace, to)
        }),
        at_load: true,
    })
}

/// Formats that the matrix unit multiplies as bf16.
const FLOATS_WITH_TILES: &KernelList = &[
    (&quant::F32, floats_with_tiles::<float_panels::F32>()),
    (&quant::F16, floats_with_tiles::<float_panels::F16>()),
    (&quant::BF16, floats_with_tiles::<float_panels::Bf16>()),
];

const fn floats<F: Format>() -> LinearKernel {
    // SAFETY: these kernels are listed only if the processor has the features.
    LinearKernel::F32(|rows, x, workspace, to| unsafe { float_rows::<F>(rows, x, &mut workspace.floats, to) })
}

/// The product of f32 that the matrix unit has fewer bits than.
pub(crate) const EXACT_F32: LinearKernel = floats::<F32>();

const fn packed<P: Packing, const AMX: bool>() -> LinearKernel {
    LinearKernel::Packed(PackedKernel {
        lines: packing::lines::<P>,
        // SAFETY: these kernels are listed only if the processor has the features.
        pack: |rows, cols, out| unsafe { pack::<P>(rows, cols, out) },
        // SAFETY: as above.
        dot: PackedDot::Integers {
            // SAFETY: as above.
            few: |panels, rows, x, workspace, to| unsafe { dot::<P>(panels, rows, x, workspace, to) },
            many: many_of::<P, AMX>(),
        },
        at_load: true,
    })
}

const fn many_of<P: Packing, const AMX: bool>() -> Option<PackedMany> {
    // SAFETY: as above.
    let many: PackedMany =
        |panels, rows, x, workspace, to| unsafe { dot_with_tiles::<P>(panels, rows, x, workspace, to) };
    if AMX { Some(many) } else { None }
}

/// Any format, in panels of plain bytes that are made in each step.
pub(crate) fn general_kernel<const AMX: bool>() -> LinearKernel {
    LinearKernel::Packed(PackedKernel {
        lines: packing::lines::<packing::Plain>,
        pack: packing::pack_plain,
        dot: PackedDot::Integers {
            // SAFETY: as above.
            few: |panels, rows, x, workspace, to| unsafe {
                dot::<packing::Plain>(panels, rows, x, workspace, to)
            },
            many: many_of::<packing::Plain, AMX>(),
        },
        at_load: false,
    })
}

/// The kernel list, with AMX or without.
struct With<const AMX: bool>;

impl<const AMX: bool> With<AMX> {
    const KERNELS: &KernelList = &[
        (&quant::F32, floats::<F32>()),
        (&quant::F16, floats::<F16>()),
        (&quant::BF16, floats::<Bf16>()),
        (&quant::Q1_0, packed::<packing::Q1_0, AMX>()),
        (&quant::Q2_0, packed::<packing::Q2_0, AMX>()),
        (&quant::PQ2_0, packed::<packing::Pq2_0, AMX>()),
        (&quant::Q2_0_G128, packed::<packing::Pq2_0, AMX>()),
        (&quant::TQ2_0_G128, packed::<packing::Tq2_0G128, AMX>()),
        (&quant::TQ2_0, packed::<packing::Tq2_0, AMX>()),
        (&quant::TQ1_0, packed::<packing::Tq1_0, AMX>()),
        (&quant::PTQ1_0, packed::<packing::Ptq1_0, AMX>()),
        (&quant::I2_S, packed::<packing::I2S, AMX>()),
        (&quant::Q4_0, packed::<packing::Q4_0, AMX>()),
        (&quant::Q4_1, packed::<packing::Q4_1, AMX>()),
        (&quant::INT4_32, packed::<packing::Int4G32, AMX>()),
        (&quant::INT4_128, packed::<packing::Int4G128, AMX>()),
        (&quant::Q5_0, packed::<packing::Q5_0, AMX>()),
        (&quant::Q5_1, packed::<packing::Q5_1, AMX>()),
        (&quant::Q8_0, packed::<packing::Q8_0, AMX>()),
        (&quant::Q2_K, packed::<packing::Q2K, AMX>()),
        (&quant::Q3_K, packed::<packing::Q3K, AMX>()),
        (&quant::Q4_K, packed::<packing::Q4K, AMX>()),
        (&quant::Q5_K, packed::<packing::Q5K, AMX>()),
        (&quant::Q6_K, packed::<packing::Q6K, AMX>()),
        (&quant::IQ1_S, packed::<Indexed<quant::Iq1S>, AMX>()),
        (&quant::IQ1_M, packed::<Indexed<quant::Iq1M>, AMX>()),
        (&quant::IQ2_XXS, packed::<Indexed<quant::Iq2Xxs>, AMX>()),
        (&quant::IQ2_XS, packed::<Indexed<quant::Iq2Xs>, AMX>()),
        (&quant::IQ2_S, packed::<Indexed<quant::Iq2S>, AMX>()),
        (&quant::IQ3_XXS, packed::<Indexed<quant::Iq3Xxs>, AMX>()),
        (&quant::IQ3_S, packed::<Indexed<quant::Iq3S>, AMX>()),
        (&quant::IQ4_NL, packed::<packing::Iq4Nl, AMX>()),
        (&quant::IQ4_XS, packed::<packing::Iq4Xs, AMX>()),
        (&quant::MXFP4, packed::<packing::Mxfp4, AMX>()),
        (&quant::NVFP4, packed::<packing::Nvfp4, AMX>()),
    ];
}

pub(crate) fn kernel<const AMX: bool>(quant: &'static Quant) -> Option<LinearKernel> {
    let floats = FLOATS_WITH_TILES.iter().find(|(listed, _)| *listed == quant);
    match floats {
        Some((_, kernel)) if AMX && amx::probe::works_with_bf16() => Some(*kernel),
        _ => kernel_of(With::<AMX>::KERNELS, general_kernel::<AMX>(), quant),
    }
}

#[cfg(test)]
pub(crate) const KERNELS: &KernelList = With::<true>::KERNELS;
