//! Float weights in panels of 16 rows for the matrix unit, which multiplies bf16.
//!
//! A line of a panel holds two neighbouring columns of its 16 rows, 16 lines hold 32 columns. BF16 is
//! stored unchanged. An f32 is the sum of two bf16, which keep 17 of its bits, and has 16 lines of the
//! high parts followed by those of the low parts. F16 is stored unchanged and becomes two bf16 when it is
//! used: their sum is exact.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F and BW and F16C, and pointers that are
//! valid for what they name.

use std::arch::x86_64::*;

use crate::dot::{PANEL, Rows};
use crate::memory::lines::Line;

/// Columns per product.
pub(crate) const DEPTH: usize = 32;
/// Lines of 32 columns of a panel, one bf16 each.
pub(crate) const TILE: usize = DEPTH / 2;

/// Lines that are prefetched.
const AHEAD: usize = 48;

/// How a format is stored in panels.
pub(crate) trait FloatPanels {
    /// Bytes of a weight.
    const BYTES: usize;
    /// The bf16 of a weight.
    const PARTS: usize;
    /// Whether lines of weights are those of the parts.
    const IN_PLACE: bool = true;
    /// Lines of 32 columns.
    const LINES: usize = if Self::IN_PLACE { Self::PARTS * TILE } else { TILE };
    /// 32 columns of a row as `LINES / TILE` vectors.
    unsafe fn load(from: *const u8) -> [__m512i; 2];
    /// A line as parts, if they are not in place.
    unsafe fn parts(line: __m512i) -> [__m512i; 2] {
        [line; 2]
    }
}

pub(crate) struct Bf16;
impl FloatPanels for Bf16 {
    const BYTES: usize = 2;
    const PARTS: usize = 1;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m512i; 2] {
        // SAFETY: the contract: 32 values.
        unsafe { [_mm512_loadu_si512(from.cast()); 2] }
    }
}

pub(crate) struct F16;
impl FloatPanels for F16 {
    const BYTES: usize = 2;
    const PARTS: usize = 2;
    const IN_PLACE: bool = false;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m512i; 2] {
        // SAFETY: the contract: 32 values.
        unsafe { [_mm512_loadu_si512(from.cast()); 2] }
    }
    #[inline(always)]
    unsafe fn parts(line: __m512i) -> [__m512i; 2] {
        // SAFETY: AVX-512 is enabled.
        unsafe {
            let upper = _mm512_extracti64x4_epi64::<1>(line);
            // of 11 bits, the high part keeps 8: the low part needs no rounding
            parts::<false>([_mm512_cvtph_ps(_mm512_castsi512_si256(line)), _mm512_cvtph_ps(upper)])
        }
    }
}

pub(crate) struct F32;
impl FloatPanels for F32 {
    const BYTES: usize = 4;
    const PARTS: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m512i; 2] {
        // SAFETY: the contract: 32 values.
        unsafe { parts_at(from.cast()) }
    }
}

/// Lines of a panel of `cols` columns.
pub(crate) fn lines<F: FloatPanels>(cols: usize) -> usize {
    cols.div_ceil(DEPTH) * F::LINES
}

/// Packs up to 16 rows; absent rows and columns are zeros.
#[inline(always)]
pub(crate) unsafe fn pack<F: FloatPanels>(rows: &Rows<'_>, cols: usize, out: &mut [Line]) {
    assert!(rows.count <= PANEL && out.len() == lines::<F>(cols));
    assert!(rows.blocks.len() == rows.count * cols * F::BYTES);
    for (block, out) in out.chunks_exact_mut(F::LINES).enumerate() {
        let from = block * DEPTH;
        let bytes = DEPTH.min(cols - from) * F::BYTES;
        // SAFETY: sizes were checked; a partial block is copied to a whole one.
        unsafe {
            let mut parts = [[_mm512_setzero_si512(); PANEL]; 2];
            for (r, row) in rows.blocks.chunks_exact(cols * F::BYTES).enumerate() {
                let mut whole = [0u8; DEPTH * 4];
                let mut at = row[from * F::BYTES..].as_ptr();
                if bytes < DEPTH * F::BYTES {
                    whole[..bytes].copy_from_slice(&row[from * F::BYTES..]);
                    at = whole.as_ptr();
                }
                [parts[0][r], parts[1][r]] = F::load(at);
            }
            for (out, part) in out.chunks_exact_mut(TILE).zip(parts) {
                store_all(transposed(part), out.as_mut_ptr());
            }
        }
    }
}

/// The parts of some lines of a panel: high ones, then low ones, of 32 columns after 32.
#[inline(always)]
pub(crate) unsafe fn unpack<F: FloatPanels>(panel: &[Line], out: &mut [Line]) {
    assert!(!F::IN_PLACE && out.len() == panel.len() * 2);
    for (lines, out) in panel.chunks_exact(TILE).zip(out.chunks_exact_mut(2 * TILE)) {
        for (i, line) in lines.iter().enumerate() {
            // SAFETY: whole lines; AVX-512 is enabled; a prefetch reads nothing.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).wrapping_add(AHEAD).cast());
                let [high, low] = F::parts(_mm512_load_si512(line.0.as_ptr().cast()));
                _mm512_store_si512(out[i].0.as_mut_ptr().cast(), high);
                _mm512_store_si512(out[TILE + i].0.as_mut_ptr().cast(), low);
            }
        }
    }
}

/// 32 floats in memory as parts.
#[inline(always)]
pub(crate) unsafe fn parts_at(x: *const f32) -> [__m512i; 2] {
    // SAFETY: 32 floats are readable; AVX-512 is enabled.
    unsafe { parts::<true>([_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))]) }
}

/// 32 floats, each as the nearest bf16 and the remainder, rounded or truncated.
#[inline(always)]
unsafe fn parts<const ROUNDED: bool>(x: [__m512; 2]) -> [__m512i; 2] {
    // SAFETY: AVX-512 BW is enabled.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let (mut high, mut low) = ([half; 2], [half; 2]);
        for i in 0..2 {
            high[i] = _mm512_and_si512(
                _mm512_add_epi32(_mm512_castps_si512(x[i]), half),
                _mm512_set1_epi32(0xFFFF_0000_u32 as i32),
            );
            low[i] = _mm512_castps_si512(_mm512_sub_ps(x[i], _mm512_castsi512_ps(high[i])));
            if ROUNDED {
                low[i] = _mm512_add_epi32(low[i], half);
            }
        }
        [upper(high), upper(low)]
    }
}

/// The upper halves of 32 words.
#[inline(always)]
unsafe fn upper(words: [__m512i; 2]) -> __m512i {
    const ODD: [i16; 32] = {
        let mut odd = [0; 32];
        let mut i = 0;
        while i < 32 {
            odd[i] = 2 * i as i16 + 1;
            i += 1;
        }
        odd
    };
    // SAFETY: AVX-512 BW is enabled.
    unsafe { _mm512_permutex2var_epi16(words[0], _mm512_loadu_si512(ODD.as_ptr().cast()), words[1]) }
}

/// Transposes 16 by 16 words.
#[inline(always)]
unsafe fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    let (mut pairs, mut fours, mut out) = (rows, rows, rows);
    // SAFETY: AVX-512 is enabled.
    unsafe {
        for i in (0..16).step_by(2) {
            pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // column 4 * lane + j of four rows
        for i in (0..16).step_by(4) {
            for j in 0..2 {
                fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
                fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
            }
        }
        for j in 0..4 {
            let even = (
                _mm512_shuffle_i32x4::<0x88>(fours[j], fours[4 + j]),
                _mm512_shuffle_i32x4::<0x88>(fours[8 + j], fours[12 + j]),
            );
            let odd = (
                _mm512_shuffle_i32x4::<0xDD>(fours[j], fours[4 + j]),
                _mm512_shuffle_i32x4::<0xDD>(fours[8 + j], fours[12 + j]),
            );
            out[j] = _mm512_shuffle_i32x4::<0x88>(even.0, even.1);
            out[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd.0, odd.1);
            out[8 + j] = _mm512_shuffle_i32x4::<0xDD>(even.0, even.1);
            out[12 + j] = _mm512_shuffle_i32x4::<0xDD>(odd.0, odd.1);
        }
    }
    out
}

#[inline(always)]
unsafe fn store_all(lines: [__m512i; 16], out: *mut Line) {
    for (i, line) in lines.into_iter().enumerate() {
        // SAFETY: the caller has room for 16 lines; AVX-512 is enabled.
        unsafe { _mm512_store_si512(out.add(i).cast(), line) };
    }
}
