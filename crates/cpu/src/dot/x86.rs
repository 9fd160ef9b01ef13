//! Integer products on x86, in AVX2 and in AVX-512 with VNNI: which kernel runs which format.

use std::arch::x86_64::{__m256, __m512};

use tern_quant::{self as quant, Quant};

use super::floats::{self, Bf16, F16, F32, FloatsRoom, Format};
use super::packed::PackedMany;
use super::x86_amx as amx;
use super::x86_amx_floats as amx_floats;
use super::x86_amx_probe::works_with_bf16;
use super::x86_layouts as layouts;
use super::x86_lookup as lookup;
use super::x86_low_bits as low_bits;
use super::x86_many as many;
use super::x86_packed as packed;
use super::x86_packing::{self as packing, Packing};
use super::x86_tiles::{self as tiles, Layout};
use super::{
    IntsKernel, KernelList, LinearKernel, PackedKernel, PackedRoom, Rows, Target, kernel_of, x86_general,
};
use crate::ints::{Ints, Rounding};
use crate::lanes::{Lanes, LanesMut, Line, quantize_tile};

/// The kernels of one instruction set.
macro_rules! kernels {
    ($module:ident, $tiles:path, $simd:path, $features:literal) => {
        pub(crate) mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn few<L: Layout>(rows: &Rows<'_>, x: &Ints<'_>, out: &mut [f32]) {
                use $tiles as run;
                // SAFETY: the features are on.
                unsafe { run::<L>(rows, x, out) }
            }
            #[target_feature(enable = $features)]
            unsafe fn panel<L: Layout>(
                rows: &Rows<'_>,
                x: &Lanes<'_>,
                room: &mut many::Panel,
                to: &Target<'_>,
            ) {
                // SAFETY: the features are on.
                unsafe { many::panel::<L, $simd>(rows, x, room, to) }
            }
            #[target_feature(enable = $features)]
            unsafe fn quantize(x: &[f32], sizes: (usize, Rounding), start: usize, out: LanesMut<'_>) {
                // SAFETY: the features are on.
                unsafe { quantize_tile::<$simd>(x, sizes, start, out) }
            }
            #[target_feature(enable = $features)]
            unsafe fn float_rows<F: Format>(
                rows: &Rows<'_>,
                x: &[f32],
                room: &mut FloatsRoom,
                to: &Target<'_>,
            ) {
                // SAFETY: the features are on.
                unsafe { floats::dot::<__m256, F, 3>(rows, x, room, to) }
            }

            /// [`crate::lanes::quantize_tile`]
            pub(crate) fn quantize_lanes(
                x: &[f32],
                sizes: (usize, Rounding),
                start: usize,
                out: LanesMut<'_>,
            ) {
                // SAFETY: these kernels are listed only where the features were detected.
                unsafe { quantize(x, sizes, start, out) }
            }

            const fn floats<F: Format>() -> LinearKernel {
                // SAFETY: as above.
                LinearKernel::F32(|rows, x, room, to| unsafe {
                    float_rows::<F>(rows, x, &mut room.floats, to)
                })
            }

            const fn ints<L: Layout>() -> LinearKernel {
                LinearKernel::Ints(IntsKernel {
                    // SAFETY: as above.
                    few: |rows, x, _, out| unsafe { few::<L>(rows, x, out) },
                    // SAFETY: as above.
                    many: Some(|rows, x, room, to| unsafe { panel::<L>(rows, x, &mut room.panel, to) }),
                })
            }

            /// Any format: rows are first unpacked by the format's own function. All that are known have a layout;
            /// a new one runs before it has.
            pub(super) fn general() -> LinearKernel {
                type Plain = x86_general::Plain;
                LinearKernel::Ints(IntsKernel {
                    few: |rows, x, room, out| {
                        let rows = x86_general::unpack(rows, x.cols, &mut room.plain);
                        // SAFETY: as above.
                        unsafe { few::<Plain>(&rows, x, out) }
                    },
                    many: Some(|rows, x, room, to| {
                        let rows = x86_general::unpack(rows, x.cols, &mut room.plain);
                        // SAFETY: as above.
                        unsafe { panel::<Plain>(&rows, x, &mut room.panel, to) }
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
                (&quant::Q5_0, ints::<layouts::Q5_0>()),
                (&quant::Q5_1, ints::<layouts::Q5_1>()),
                (&quant::Q8_0, ints::<layouts::Q8_0>()),
                (&quant::Q2_K, ints::<layouts::Q2K>()),
                (&quant::Q3_K, ints::<layouts::Q3K>()),
                (&quant::Q4_K, ints::<layouts::Q4K>()),
                (&quant::Q5_K, ints::<layouts::Q5K>()),
                (&quant::Q6_K, ints::<layouts::Q6K>()),
                (&quant::IQ4_NL, ints::<layouts::Iq4Nl>()),
                (&quant::IQ4_XS, ints::<layouts::Iq4Xs>()),
                (&quant::MXFP4, ints::<layouts::Mxfp4>()),
                (&quant::NVFP4, ints::<layouts::Nvfp4>()),
            ];

            pub(crate) fn kernel(quant: &'static Quant) -> Option<LinearKernel> {
                kernel_of(KERNELS, general(), quant)
            }
        }
    };
}

kernels!(avx2, tiles::dot_rows_256, tiles::Avx2, "avx2,fma,f16c");

/// The kernels of packed weights.
pub(crate) mod avx512 {
    use super::*;

    macro_rules! with_features {
        ($(fn $name:ident$(<$p:ident>)?($($arg:ident: $type:ty),*) = $call:expr;)*) => {
            $(#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
            unsafe fn $name$(<$p: Packing>)?($($arg: $type),*) {
                // SAFETY: the features are on.
                unsafe { $call }
            })*
        };
    }

    with_features! {
        fn pack<P>(rows: &Rows<'_>, cols: usize, out: &mut [Line]) = packing::pack::<P>(rows, cols, out);
        fn dot_with_tiles<P>(
            panels: &[Line],
            rows: usize,
            x: &Lanes<'_>,
            room: &mut PackedRoom,
            to: &Target<'_>
        ) = amx::dot::<P>(panels, rows, x, room, to);
        fn dot<P>(panels: &[Line], rows: usize, x: &Ints<'_>, room: &mut PackedRoom, to: &Target<'_>) =
            if lookup::suits::<P>(x) {
                lookup::dot::<P>(panels, rows, x, room, to)
            } else {
                packed::dot::<P>(panels, rows, x, to)
            };
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn float_rows<F: Format>(rows: &Rows<'_>, x: &[f32], room: &mut FloatsRoom, to: &Target<'_>) {
        // SAFETY: the features are on.
        unsafe { floats::dot::<__m512, F, 6>(rows, x, room, to) }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn bf16_with_tiles(rows: &Rows<'_>, x: &[f32], room: &mut FloatsRoom, to: &Target<'_>) {
        // SAFETY: the features are on.
        unsafe {
            if amx_floats::suits(rows.blocks.len() / rows.count / 2) {
                amx_floats::dot(rows, x, room, to);
            } else {
                float_rows::<Bf16>(rows, x, room, to);
            }
        }
    }

    const fn floats<F: Format>() -> LinearKernel {
        // SAFETY: these kernels are listed only where the features were detected.
        LinearKernel::F32(|rows, x, room, to| unsafe { float_rows::<F>(rows, x, &mut room.floats, to) })
    }

    const fn packed<P: Packing, const AMX: bool>() -> LinearKernel {
        LinearKernel::Packed(PackedKernel {
            lines: packing::lines::<P>,
            // SAFETY: these kernels are listed only where the features were detected.
            pack: |rows, cols, out| unsafe { pack::<P>(rows, cols, out) },
            // SAFETY: as above.
            few: |panels, rows, x, room, to| unsafe { dot::<P>(panels, rows, x, room, to) },
            many: many_of::<P, AMX>(),
            at_load: true,
        })
    }

    const fn many_of<P: Packing, const AMX: bool>() -> Option<PackedMany> {
        // SAFETY: as above.
        let many: PackedMany =
            |panels, rows, x, room, to| unsafe { dot_with_tiles::<P>(panels, rows, x, room, to) };
        if AMX { Some(many) } else { None }
    }

    /// Any format, in panels of plain bytes that are made when they are used.
    pub(super) fn general<const AMX: bool>() -> LinearKernel {
        LinearKernel::Packed(PackedKernel {
            lines: packing::lines::<packing::Plain>,
            pack: packing::pack_plain,
            // SAFETY: as above.
            few: |panels, rows, x, room, to| unsafe { dot::<packing::Plain>(panels, rows, x, room, to) },
            many: many_of::<packing::Plain, AMX>(),
            at_load: false,
        })
    }

    /// The kernels with AMX or without.
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
            (&quant::Q5_0, packed::<packing::Q5_0, AMX>()),
            (&quant::Q5_1, packed::<packing::Q5_1, AMX>()),
            (&quant::Q8_0, packed::<packing::Q8_0, AMX>()),
            (&quant::Q2_K, packed::<packing::Q2K, AMX>()),
            (&quant::Q3_K, packed::<packing::Q3K, AMX>()),
            (&quant::Q4_K, packed::<packing::Q4K, AMX>()),
            (&quant::Q5_K, packed::<packing::Q5K, AMX>()),
            (&quant::Q6_K, packed::<packing::Q6K, AMX>()),
            (&quant::IQ4_NL, packed::<packing::Iq4Nl, AMX>()),
            (&quant::IQ4_XS, packed::<packing::Iq4Xs, AMX>()),
            (&quant::MXFP4, packed::<packing::Mxfp4, AMX>()),
            (&quant::NVFP4, packed::<packing::Nvfp4, AMX>()),
        ];
    }

    pub(crate) fn kernel<const AMX: bool>(quant: &'static Quant) -> Option<LinearKernel> {
        if AMX && *quant == quant::BF16 && works_with_bf16() {
            // SAFETY: as above.
            return Some(LinearKernel::F32(|rows, x, room, to| unsafe {
                bf16_with_tiles(rows, x, &mut room.floats, to)
            }));
        }
        kernel_of(With::<AMX>::KERNELS, general::<AMX>(), quant)
    }

    #[cfg(test)]
    pub(super) const KERNELS: &KernelList = With::<true>::KERNELS;
}

#[cfg(test)]
mod tests {
    use tern_graph::{Random, cases};
    use tern_quant::{DotWith, INT_BLOCK};

    use super::*;
    use crate::dot::Room;
    use crate::dot::tests::assert_lists_all;
    use crate::ints::{self, IntsBuffer};
    use crate::shared::Shared;

    const ROWS: usize = 11;
    const COLS: usize = 768;

    /// `[ROWS]` results of one token.
    fn run(kernel: LinearKernel, rows: &Rows<'_>, x: &Ints<'_>) -> Vec<f32> {
        let (out, mut room) = (Shared::new(ROWS).unwrap(), Room::default());
        match kernel {
            LinearKernel::Ints(kernel) => {
                // SAFETY: one thread.
                (kernel.few)(rows, x, &mut room, unsafe { out.get_mut(0..ROWS) });
            }
            LinearKernel::Packed(kernel) => {
                let mut panel = vec![Line::default(); (kernel.lines)(COLS)];
                (kernel.pack)(rows, COLS, &mut panel);
                let to = Target { out: &out, stride: ROWS, first: 0, scale: 1.0, bias: None };
                (kernel.few)(&panel, ROWS, x, &mut room.packed, &to);
            }
            LinearKernel::F32(_) => panic!("{} has no integers", rows.quant),
        }
        // SAFETY: one thread.
        unsafe { out.get(0..ROWS) }.to_vec()
    }

    #[test]
    fn every_format_has_a_kernel() {
        assert_lists_all(avx2::KERNELS, &[]);
        assert_lists_all(avx512::KERNELS, &[]);
    }

    /// The way of formats without a kernel of their own, of which there may be none.
    #[test]
    fn every_format_can_go_the_general_way() {
        let names: Vec<_> = crate::available().iter().map(|k| k.name).collect();
        let general = [("avx2", avx2::general()), ("avx512", avx512::general::<false>())];
        let rng = &mut Random::new(3);
        let buffer = IntsBuffer::new(COLS).unwrap();
        // SAFETY: one thread.
        let x = unsafe {
            let rounding = Rounding { span: INT_BLOCK, low: 8 };
            ints::quantize(&rng.normals(COLS, 1.0), rounding, buffer.part(COLS, 0, 0, COLS));
            buffer.view(1, COLS, 8)
        };
        for quant in tern_quant::ALL.iter().filter(|q| q.is_runnable() && q.dot_with == DotWith::Ints) {
            let w = cases::random_tensor("w", quant, ROWS, COLS, rng);
            let (blocks, tail) = w.data.split_at(w.data.len() - quant.tail);
            let rows = Rows { quant, count: ROWS, blocks, tail };
            let want = run(crate::dot::scalar::kernel(quant).unwrap(), &rows, &x);
            for (name, kernel) in general.into_iter().filter(|(name, _)| names.contains(name)) {
                let off = cases::distance(&run(kernel, &rows, &x), &want);
                assert!(off <= 4e-6, "{name}: {quant}: {off} from scalar");
            }
        }
    }
}
