//! Vectors of floats on ARM, and halves to floats and back.
//!
//! # Safety
//! Every `unsafe` function of this module requires pointers that are valid for the bytes that its comment
//! names: one block for codes, `groups` groups of 32 columns for scales. Every aarch64 has NEON.

use std::arch::aarch64::*;

use crate::dot::LinearKernel;
use crate::dot::portable::floats::{self, Format};
use crate::dot::portable::scalar;
use crate::vectors::Vector;

/// Four halves as floats.
#[inline(always)]
pub(crate) unsafe fn load_halves(p: *const u16) -> float32x4_t {
    // SAFETY: four halves are readable at `p` by the contract; every aarch64 has NEON.
    unsafe { vcvt_f32_f16(p.cast::<float16x4_t>().read_unaligned()) }
}

/// A format's kernel: four rows by six tokens in 24 of 32 registers.
pub(crate) const fn kernel<F: Format>() -> LinearKernel {
    // SAFETY: every aarch64 has NEON; threads write disjoint rows.
    LinearKernel::F32(|rows, x, workspace, to| unsafe {
        floats::dot::<float32x4_t, F, 6>(rows, x, &mut workspace.floats, to)
    })
}

impl Vector for float32x4_t {
    const LEN: usize = 4;
    const ROWS: usize = 8;
    instructions! {
        splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        load(p: *const f32) -> float32x4_t = vld1q_f32(p);
        store(self: Self, p: *mut f32) -> () = vst1q_f32(p, self);
        halves(p: *const u16) -> float32x4_t = load_halves(p);
        bf16(p: *const u16) -> float32x4_t = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
        bytes(p: *const i8) -> float32x4_t = {
            let bytes = vreinterpret_s8_u32(vdup_n_u32(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        };
        mul_add(self: Self, by: float32x4_t, plus: float32x4_t) -> float32x4_t = vfmaq_f32(plus, self, by);
        sums(each: [float32x4_t; 4]) -> [f32; 4] = {
            let sums = vpaddq_f32(vpaddq_f32(each[0], each[1]), vpaddq_f32(each[2], each[3]));
            std::mem::transmute::<float32x4_t, [f32; 4]>(sums)
        };
    }
}

pub(crate) fn store_f16(x: &[f32], out: &mut [u16]) {
    let n = x.len().min(out.len());
    let ((x4, x_rest), (out4, out_rest)) = (x[..n].as_chunks::<4>(), out[..n].as_chunks_mut::<4>());
    for (x, out) in x4.iter().zip(out4) {
        // SAFETY: four values each; every aarch64 has NEON.
        unsafe {
            let halves = vcvt_f16_f32(vld1q_f32(x.as_ptr()));
            out.as_mut_ptr().cast::<float16x4_t>().write_unaligned(halves);
        }
    }
    scalar::store_f16(x_rest, out_rest);
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// A multiple of four halves.
    fn floats(halves: &[u16]) -> Vec<f32> {
        let mut out = vec![0.0f32; halves.len()];
        for (x, out) in halves.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: four values each.
            unsafe { float32x4_t::halves(x.as_ptr()).store(out.as_mut_ptr()) };
        }
        out
    }

    #[test]
    fn bytes_become_their_floats() {
        for first in i8::MIN..=124 {
            let (bytes, mut got) = ([first, first + 1, first + 2, first + 3], [0.0f32; 4]);
            // SAFETY: four values each.
            unsafe { float32x4_t::bytes(bytes.as_ptr()).store(got.as_mut_ptr()) };
            assert_eq!(got, bytes.map(f32::from));
        }
    }

    #[test]
    fn every_half_becomes_its_float() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let got = floats(&all);
        for (&bits, got) in all.iter().zip(&got) {
            let want = f16::from_bits(bits).to_f32();
            assert!(*got == want || got.is_nan() && want.is_nan(), "{bits:#06x}: {got} for {want}");
        }
    }

    #[test]
    fn floats_become_the_nearest_half() {
        // every half, its neighbouring floats, and those next to the midpoint to the next half
        let near = |bits: u32| [bits, bits ^ 0x0FFF, bits | 0x0FFF, bits | 0x1000, bits | 0x1001, bits + 1];
        let halves = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32().to_bits());
        let tiny = (0x3300_0000..0x3880_0000).step_by(0x1000); // below the smallest normal half
        let all: Vec<f32> = halves.chain(tiny).flat_map(near).map(f32::from_bits).collect();
        let mut got = vec![0u16; all.len()];
        store_f16(&all, &mut got);
        for (x, &got) in all.iter().zip(&got) {
            let (got, want) = (f16::from_bits(got), f16::from_f32(*x));
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{x:e}: {got} for {want}"
            );
        }
    }

    #[test]
    fn lengths_need_not_be_even() {
        for n in [0, 3, 4, 16, 23, 64, 81] {
            let a: Vec<f32> = (0..n).map(|i| i as f32 - 7.0).collect();
            let mut halves = vec![0; n];
            store_f16(&a, &mut halves);
            let out: Vec<f32> = halves.iter().map(|h| f16::from_bits(*h).to_f32()).collect();
            assert_eq!(out, a, "{n} values");
        }
    }
}
