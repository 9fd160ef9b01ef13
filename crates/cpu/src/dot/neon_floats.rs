//! Half-precision products on ARM: attention over f16 pages, and F16 weights.

use std::arch::aarch64::*;

use super::{Rows, scalar};

/// Four halves as floats.
#[inline(always)]
pub(super) unsafe fn load_halves(p: *const u16) -> float32x4_t {
    // SAFETY: four halves are readable at `p` by the caller's promise; NEON is there on every aarch64.
    unsafe { vcvt_f32_f16(p.cast::<float16x4_t>().read_unaligned()) }
}

/// `sum(a * b)` of `len` values, a multiple of 16; four running vectors.
#[inline(always)]
unsafe fn dot(a: *const f32, b: *const u16, len: usize) -> f32 {
    // SAFETY: `len` values are readable at both by the caller's promise; NEON is there on every aarch64.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); 4];
        for at in (0..len).step_by(16) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let at = at + 4 * i;
                *sum = vfmaq_f32(*sum, vld1q_f32(a.add(at)), load_halves(b.add(at)));
            }
        }
        vaddvq_f32(vaddq_f32(vaddq_f32(sums[0], sums[1]), vaddq_f32(sums[2], sums[3])))
    }
}

/// F16 weights against f32 activations.
pub(super) fn f16_rows(rows: &Rows<'_>, x: &[f32], out: &mut [f32]) {
    let tokens = out.len() / rows.count;
    for (row, out) in rows.each().zip(out.chunks_exact_mut(tokens)) {
        let cols = row.len() / 2;
        let whole = cols / 16 * 16;
        for (y, x) in out.iter_mut().zip(x.chunks_exact(cols)) {
            // SAFETY: a row and a token have `cols` values.
            let sum = unsafe { dot(x.as_ptr(), row.as_ptr().cast(), whole) };
            let rest = row[2 * whole..].as_chunks::<2>().0.iter().zip(&x[whole..]);
            *y = sum + rest.map(|(w, x)| half::f16::from_le_bytes(*w).to_f32() * x).sum::<f32>();
        }
    }
}

pub(crate) fn load_f16(x: &[u16], out: &mut [f32]) {
    let n = x.len().min(out.len());
    let ((x4, x_rest), (out4, out_rest)) = (x[..n].as_chunks::<4>(), out[..n].as_chunks_mut::<4>());
    for (x, out) in x4.iter().zip(out4) {
        // SAFETY: four values each; NEON is there on every aarch64.
        unsafe { vst1q_f32(out.as_mut_ptr(), load_halves(x.as_ptr())) };
    }
    scalar::load_f16(x_rest, out_rest);
}

pub(crate) fn store_f16(x: &[f32], out: &mut [u16]) {
    let n = x.len().min(out.len());
    let ((x4, x_rest), (out4, out_rest)) = (x[..n].as_chunks::<4>(), out[..n].as_chunks_mut::<4>());
    for (x, out) in x4.iter().zip(out4) {
        // SAFETY: four values each; NEON is there on every aarch64.
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

    #[test]
    fn every_half_becomes_its_float() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut got = vec![0.0f32; all.len()];
        load_f16(&all, &mut got);
        for (&bits, got) in all.iter().zip(&got) {
            let want = f16::from_bits(bits).to_f32();
            assert!(*got == want || got.is_nan() && want.is_nan(), "{bits:#06x}: {got} for {want}");
        }
    }

    #[test]
    fn floats_become_the_nearest_half() {
        // every half, what lies a bit beside it, and a bit beside the middle to the next
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
            let mut out = vec![0.0; n];
            load_f16(&halves, &mut out);
            assert_eq!(out, a, "{n} values");
        }
    }
}
