//! Activations to integers with AVX-512: [`crate::ints::quantize`] bit by bit.

use std::arch::x86_64::*;

use tern_quant::INT_BLOCK;

use crate::ints::{IntsMut, SUM_BLOCK};

/// All blocks of a run of values; `span` columns share a scale.
pub(crate) fn quantize(x: &[f32], span: usize, out: IntsMut<'_>) {
    let blocks = x.len() / INT_BLOCK;
    assert!(out.high.len() == x.len() && out.low.len() == x.len() && x.len() == blocks * INT_BLOCK);
    assert!(out.scales.len() == blocks && out.sums32.len() == blocks && out.minus32.len() == blocks);
    assert!(out.sums16.len() == 2 * blocks && out.minus16.len() == 2 * blocks);
    // SAFETY: sizes were checked; these kernels are listed only where the features were detected.
    unsafe { quantize_wide(x, span, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn quantize_wide(x: &[f32], span: usize, out: IntsMut<'_>) {
    let mut at = 0; // in values
    for x in x.chunks(span) {
        let mut most = _mm512_setzero_ps();
        for x in x.as_chunks::<SUM_BLOCK>().0 {
            // SAFETY: 16 values.
            let x = unsafe { _mm512_loadu_ps(x.as_ptr()) };
            most = _mm512_max_ps(_mm512_abs_ps(x), most); // the second where one is not a number
        }
        let largest = _mm512_reduce_max_ps(most);
        let inverse = _mm512_set1_ps(if largest > 0.0 { 127.0 / largest } else { 0.0 });
        let scale = largest / (127.0 * 256.0);
        out.scales[at / INT_BLOCK..(at + x.len()) / INT_BLOCK].fill(scale);
        for x in x.as_chunks::<SUM_BLOCK>().0 {
            // SAFETY: 16 values here and in both planes.
            let whole = unsafe {
                let exact = _mm512_mul_ps(_mm512_loadu_ps(x.as_ptr()), inverse);
                let high = _mm512_cvtps_epi32(exact);
                let rest = _mm512_sub_ps(exact, _mm512_cvtepi32_ps(high));
                let rest = _mm512_mul_ps(rest, _mm512_set1_ps(256.0));
                let rest = _mm512_max_ps(_mm512_min_ps(rest, _mm512_set1_ps(127.0)), _mm512_set1_ps(-127.0));
                let low = _mm512_cvtps_epi32(rest);
                _mm_storeu_si128(out.high.as_mut_ptr().add(at).cast(), _mm512_cvtepi32_epi8(high));
                _mm_storeu_si128(out.low.as_mut_ptr().add(at).cast(), _mm512_cvtepi32_epi8(low));
                _mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
            };
            out.minus16[at / SUM_BLOCK] = -whole;
            out.sums16[at / SUM_BLOCK] = scale * whole as f32;
            at += SUM_BLOCK;
        }
    }
    let (sums16, minus16) = (out.sums16.as_chunks::<2>().0, out.minus16.as_chunks::<2>().0);
    for (b, (sums, minus)) in sums16.iter().zip(minus16).enumerate() {
        out.sums32[b] = sums[0] + sums[1];
        out.minus32[b] = minus[0] + minus[1];
    }
}

#[cfg(test)]
mod tests {
    use crate::ints::{self, Ints, IntsBuffer};

    #[test]
    fn the_plain_loop_bit_by_bit() {
        if !crate::available().iter().any(|k| k.name == "avx512") {
            return;
        }
        let mut x = tern_graph::Random::new(3).normals(512, 2.0);
        (x[7], x[200]) = (900.0, -0.0);
        x[256..320].fill(0.0);
        let [plain, wide] = [0, 1].map(|_| IntsBuffer::new(512, false));
        for span in [32, 64, 128] {
            // SAFETY: one thread.
            let [a, b] = unsafe {
                ints::quantize(&x, span, plain.part(512, 0, 0, 512));
                super::quantize(&x, span, wide.part(512, 0, 0, 512));
                [plain.view(1, 512), wide.view(1, 512)]
            };
            let parts = |v: &Ints<'_>| {
                let ints = [v.high, v.low].map(<[i8]>::to_vec);
                let floats = [v.scales, v.sums32, v.sums16].map(<[f32]>::to_vec);
                (ints, floats, [v.minus32, v.minus16].map(<[i32]>::to_vec))
            };
            assert_eq!(parts(&a), parts(&b), "span {span}");
        }
    }
}
