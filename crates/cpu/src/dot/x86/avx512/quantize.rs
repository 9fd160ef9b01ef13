//! Activations to integers with AVX-512: [`crate::activations::quantized_rows::quantize`] bit by bit.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL and DQ, and output for all values.

use std::arch::x86_64::*;

use tern_quant::INT_BLOCK;

use crate::activations::quantized_rows::{QuantizedRowsMut, Rounding, SUM_BLOCK};
use crate::activations::token_tiles::TileRow;

/// All blocks of a run of values.
pub(crate) fn quantize(x: &[f32], rounding: Rounding, out: QuantizedRowsMut<'_>) {
    let blocks = x.len() / INT_BLOCK;
    assert!(out.high.len() == x.len() && out.low.len() == x.len() && x.len() == blocks * INT_BLOCK);
    assert!(out.scales.len() == blocks && out.sums32.len() == blocks && out.minus32.len() == blocks);
    assert!(out.sums16.len() == 2 * blocks && out.minus16.len() == 2 * blocks);
    // SAFETY: sizes were checked; these kernels are listed only if the processor has the features.
    unsafe { quantize_wide(x, rounding, out) }
}

/// The same for one token of a tile.
pub(crate) fn quantize_row(x: &[f32], rounding: Rounding, out: &TileRow<'_>) {
    assert!(x.len().is_multiple_of(INT_BLOCK));
    // SAFETY: the row was made for these columns; these kernels are listed only if the
    // processor has the features.
    unsafe { quantize_row_wide(x, rounding, out) }
}

/// The scale of columns that share it, and the steps of the low plane per unit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn scale_of(x: &[f32], rounding: Rounding) -> (f32, __m512) {
    // as integers, so that NaN is the largest of all: see `quantized_rows::largest`
    let mut most = _mm512_setzero_si512();
    for x in x.as_chunks::<SUM_BLOCK>().0 {
        // SAFETY: 16 values.
        let x = unsafe { _mm512_loadu_ps(x.as_ptr()) };
        most = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(x)), most);
    }
    let largest = f32::from_bits(_mm512_reduce_max_epi32(most) as u32);
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    (largest / (127.0 * 256.0), _mm512_set1_ps(inverse * rounding.steps()))
}

/// 16 values into both planes, the low one in steps or, if `UPPER`, in its upper bits; returns their sum in
/// units of the planes, before the scale.
///
/// # Safety
/// Both planes have 16 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn put16<const UPPER: bool>(
    x: &[f32; SUM_BLOCK],
    (steps, rounding): (__m512, Rounding),
    (above, below): (*mut i8, *mut i8),
) -> i32 {
    // SAFETY: 16 values here, and the contract.
    unsafe {
        let whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.as_ptr()), steps));
        let bits = _mm_cvtsi32_si128(rounding.low as i32);
        let high = _mm512_add_epi32(whole, _mm512_set1_epi32(1 << rounding.low >> 1));
        let high = _mm512_sra_epi32(high, bits);
        let rest = _mm512_sub_epi32(whole, _mm512_sll_epi32(high, bits));
        let rest = _mm512_max_epi32(rest, _mm512_set1_epi32(-127));
        let low = _mm512_sll_epi32(rest, _mm_cvtsi32_si128(8 - rounding.low as i32));
        _mm_storeu_si128(above.cast(), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128(below.cast(), _mm512_cvtepi32_epi8(if UPPER { low } else { rest }));
        _mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn quantize_wide(x: &[f32], rounding: Rounding, out: QuantizedRowsMut<'_>) {
    let mut i = 0; // in units of 16 values
    for x in x.chunks(rounding.span) {
        let (scale, steps) = scale_of(x, rounding);
        let block = i * SUM_BLOCK / INT_BLOCK;
        out.scales[block..block + x.len() / INT_BLOCK].fill(scale);
        for x in x.as_chunks::<SUM_BLOCK>().0 {
            // SAFETY: there are as many values in both planes.
            let whole = unsafe {
                let at = i * SUM_BLOCK;
                put16::<true>(
                    x,
                    (steps, rounding),
                    (out.high.as_mut_ptr().add(at), out.low.as_mut_ptr().add(at)),
                )
            };
            out.minus16[i] = whole.wrapping_neg(); // arbitrary for values that are not finite
            out.sums16[i] = scale * whole as f32;
            i += 1;
        }
    }
    let (sums16, minus16) = (out.sums16.as_chunks::<2>().0, out.minus16.as_chunks::<2>().0);
    for (b, (sums, minus)) in sums16.iter().zip(minus16).enumerate() {
        out.sums32[b] = sums[0] + sums[1];
        out.minus32[b] = minus[0].wrapping_add(minus[1]);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn quantize_row_wide(x: &[f32], rounding: Rounding, out: &TileRow<'_>) {
    let mut block = 0;
    for x in x.chunks(rounding.span) {
        let (scale, steps) = scale_of(x, rounding);
        for x in x.as_chunks::<INT_BLOCK>().0 {
            // SAFETY: the row has this block.
            unsafe {
                let mut sums = [0.0; 2];
                for (half, x) in x.as_chunks::<SUM_BLOCK>().0.iter().enumerate() {
                    let i = 2 * block + half;
                    sums[half] = scale * put16::<false>(x, (steps, rounding), out.planes(i)) as f32;
                    out.set_sum16(i, sums[half]);
                }
                // exact: a power of two
                out.set_block(block, scale * 256.0 / rounding.steps(), sums[0] + sums[1]);
            }
            block += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::activations::quantized_rows::{self, QuantizedRows, QuantizedRowsBuffer, Rounding};
    use crate::activations::token_tiles::{Place, TokenTilesBuffer};

    #[test]
    fn the_plain_loop_bit_by_bit() {
        if !crate::available().iter().any(|k| k.name == "avx512") {
            return;
        }
        let mut x = tern_graph::Random::new(3).normals(512, 2.0);
        (x[7], x[200]) = (900.0, -0.0);
        x[256..320].fill(0.0);
        let [plain, wide] = [0, 1].map(|_| QuantizedRowsBuffer::new(512).unwrap());
        for (span, low) in [(32, 8), (64, 8), (128, 8), (128, 6), (32, 4)] {
            let rounding = Rounding { span, low };
            // SAFETY: one thread.
            let [a, b] = unsafe {
                quantized_rows::quantize(&x, rounding, plain.part(512, 0, 0, 512));
                super::quantize(&x, rounding, wide.part(512, 0, 0, 512));
                [plain.view(1, 512, 8), wide.view(1, 512, 8)]
            };
            let parts = |v: &QuantizedRows<'_>| {
                let ints = [v.high, v.low].map(<[i8]>::to_vec);
                let floats = [v.scales, v.sums32, v.sums16].map(<[f32]>::to_vec);
                (ints, floats, [v.minus32, v.minus16].map(<[i32]>::to_vec))
            };
            assert_eq!(parts(&a), parts(&b), "{rounding:?}");
        }
    }

    #[test]
    fn tiles_hold_the_numbers_of_the_planes() {
        if !crate::available().iter().any(|k| k.name == "avx512") {
            return;
        }
        for (tokens, cols, span, low) in
            [(3, 96, 32, 8), (21, 256, 128, 8), (17, 32, 32, 8), (18, 96, 32, 4), (16, 256, 128, 6)]
        {
            let rounding = Rounding { span, low };
            let x = tern_graph::Random::new(5).normals(tokens * cols, 1.0);
            let (planes, tiles) =
                (QuantizedRowsBuffer::new(tokens * cols).unwrap(), TokenTilesBuffer::new(32 * cols).unwrap());
            // SAFETY: one thread.
            let (planes, tiles) = unsafe {
                for (t, x) in x.chunks_exact(cols).enumerate() {
                    super::quantize(x, rounding, planes.part(cols, t, 0, cols));
                    for (i, x) in x.chunks(span).enumerate() {
                        super::quantize_row(x, rounding, &tiles.row(low, cols, t, i * span, span));
                    }
                }
                (planes.view(tokens, cols, low), tiles.view(tokens, cols, low))
            };
            let bytes: Vec<i8> = tiles
                .values
                .iter()
                .flat_map(|l| l.0)
                .flat_map(|v| v.to_le_bytes())
                .map(|b| b as i8)
                .collect();
            for (t, col) in (0..tokens * cols).map(|i| (i / cols, i % cols)) {
                let (at, tile, lane, place) = (t * cols + col, t / 16, t % 16, Place::of(col, cols, low));
                let step = 1i8 << (8 - low);
                let byte = tile * 16 * cols * 2 + place.at + lane * place.stride;
                assert_eq!((bytes[byte], bytes[byte + place.low] * step), (planes.high[at], planes.low[at]));
                let entry = |each: usize| (tile * (cols / each) + col / each) * 16 + lane;
                assert_eq!(tiles.scales[entry(32)], planes.scales[at / 32] * f32::from(step));
                assert_eq!(tiles.sums32[entry(32)], planes.sums32[at / 32]);
                assert_eq!(tiles.sums16[entry(16)], planes.sums16[at / 16]);
            }
        }
    }
}
