//! Scales of a packed block, 16 rows side by side.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL, DQ and VNNI, pointers that are valid
//! for what they name (a group's codes, a block's scales, a unit of activations), and that no other thread
//! accesses the rows of `to`.

use std::arch::x86_64::*;

use crate::dot::PANEL;
use crate::dot::x86::avx2::layouts;
use crate::memory::lines::Line;

/// How scales of a block are loaded into registers.
pub(crate) trait Scaling {
    /// Bytes of a block of 16 rows.
    const BYTES: usize;
    /// A scale per 16 columns instead of per 32.
    const HALVES: bool = false;
    /// A block has one scale and no offset.
    const ONE: bool = false;
    /// The scales of half groups are integers times the block's scale and are multiplied into the codes: a
    /// block then has one scale.
    const INTEGER_SCALES: bool = false;
    /// Codes times integer scales exceed a byte and take two digits.
    const TWO_DIGITS: bool = false;
    /// There are offsets.
    const OFFSETS: bool = false;
    /// What all groups of a block share: a scale and an offset's scale. By default one
    /// f16 per row and no offset.
    ///
    /// # Safety
    /// A block's scales are readable at `p`; AVX-512 is enabled.
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { (floats(p), _mm512_setzero_ps()) }
    }
    /// Scale and offset of group (or half group) `i`; by default the block's.
    ///
    /// # Safety
    /// As for `head`.
    #[inline(always)]
    unsafe fn at(_p: *const u8, head: (__m512, __m512), _i: usize) -> (__m512, __m512) {
        head
    }
    /// The integer scale of half group `i`, if scales are integers, and its offset.
    ///
    /// # Safety
    /// As for `head`.
    #[inline(always)]
    unsafe fn integer_scale(_p: *const u8, head: (__m512, __m512), _i: usize) -> (__m512i, __m512) {
        // SAFETY: AVX-512 is enabled.
        (unsafe { _mm512_set1_epi32(1) }, head.1)
    }
}

/// 16 halves as floats.
#[inline(always)]
unsafe fn floats(p: *const u8) -> __m512 {
    // SAFETY: 32 bytes are readable at `p`; AVX-512 is enabled.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

/// 16 unsigned bytes as floats.
#[inline(always)]
unsafe fn unsigned(p: *const u8) -> __m512 {
    // SAFETY: 16 bytes are readable at `p`; AVX-512 is enabled.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
}

#[inline(always)]
unsafe fn negative(v: __m512) -> __m512 {
    // SAFETY: AVX-512 DQ is enabled.
    unsafe { _mm512_xor_ps(v, _mm512_set1_ps(-0.0)) }
}

/// Copies 16 bits of a row to their place.
#[inline(always)]
fn put_half(row: usize, out: &mut [u8], half: &[u8]) {
    out[2 * row..2 * row + 2].copy_from_slice(half);
}

/// The same for two; the second values follow the first ones of all rows.
#[inline(always)]
fn put_halves(row: usize, out: &mut [u8], halves: &[u8]) {
    put_half(row, out, &halves[..2]);
    put_half(row, &mut out[2 * PANEL..], &halves[2..]);
}

/// A scale in f16 per row, and one to subtract.
#[inline(always)]
unsafe fn scale_and_minimum(p: *const u8) -> (__m512, __m512) {
    // SAFETY: 64 bytes are readable at `p`; AVX-512 DQ is enabled.
    unsafe { (floats(p), negative(floats(p.add(2 * PANEL)))) }
}

/// One f16 per row.
pub(crate) struct HalfFloats;
impl Scaling for HalfFloats {
    const ONE: bool = true;
    const BYTES: usize = 2 * PANEL;
}

/// One f32 per row.
pub(crate) struct OneFloat;
impl Scaling for OneFloat {
    const ONE: bool = true;
    const BYTES: usize = 4 * PANEL;
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { (_mm512_loadu_ps(p.cast()), _mm512_setzero_ps()) }
    }
}

/// An f16 scale and an f16 offset per row.
pub(crate) struct HalvesAndMins;
impl Scaling for HalvesAndMins {
    const BYTES: usize = 4 * PANEL;
    const OFFSETS: bool = true;
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { (floats(p), floats(p.add(2 * PANEL))) }
    }
}

/// An f32 and a zero point of a byte per row.
pub(crate) struct ZeroPoints;
impl ZeroPoints {
    pub(crate) fn put(row: usize, out: &mut [u8], block: &[u8]) {
        out[4 * row..4 * row + 4].copy_from_slice(&block[..4]);
        out[4 * PANEL + row] = block[4];
    }
}
impl Scaling for ZeroPoints {
    const BYTES: usize = (4 + 1) * PANEL;
    const OFFSETS: bool = true;
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe {
            let scales = _mm512_loadu_ps(p.cast());
            (scales, negative(_mm512_mul_ps(scales, unsigned(p.add(4 * PANEL)))))
        }
    }
}

/// Two f16 per row, and a byte of scale and one of minimum for each group.
pub(crate) struct SixBits;
impl SixBits {
    pub(crate) fn put(row: usize, out: &mut [u8], block: &[u8]) {
        put_halves(row, out, &block[..4]);
        let (scales, mins) = layouts::six_bits(block);
        for (g, (scale, min)) in scales.into_iter().zip(mins).enumerate() {
            let at = (4 + 2 * g) * PANEL + row;
            (out[at], out[at + PANEL]) = (scale, min);
        }
    }
}
impl Scaling for SixBits {
    const BYTES: usize = (4 + 2 * 8) * PANEL;
    const OFFSETS: bool = true;
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { scale_and_minimum(p) }
    }
    #[inline(always)]
    unsafe fn at(p: *const u8, head: (__m512, __m512), i: usize) -> (__m512, __m512) {
        let at = (4 + 2 * i) * PANEL;
        // SAFETY: the contract of this function.
        unsafe {
            (_mm512_mul_ps(unsigned(p.add(at)), head.0), _mm512_mul_ps(unsigned(p.add(at + PANEL)), head.1))
        }
    }
}

/// An f16 per row, and a signed byte for each of `N` groups.
pub(crate) struct Bytes<const N: usize, const TWO_DIGITS: bool = false>;
impl<const N: usize, const TWO_DIGITS: bool> Bytes<N, TWO_DIGITS> {
    pub(crate) fn put(row: usize, out: &mut [u8], half: &[u8], bytes: &[u8]) {
        put_half(row, out, half);
        bytes.iter().enumerate().for_each(|(i, b)| out[(2 + i) * PANEL + row] = *b);
    }
}
impl<const N: usize, const TWO_DIGITS: bool> Scaling for Bytes<N, TWO_DIGITS> {
    const BYTES: usize = (2 + N) * PANEL;
    const HALVES: bool = N == 16;
    const INTEGER_SCALES: bool = Self::HALVES;
    const TWO_DIGITS: bool = TWO_DIGITS;
    #[inline(always)]
    unsafe fn at(p: *const u8, head: (__m512, __m512), i: usize) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { (_mm512_mul_ps(_mm512_cvtepi32_ps(Self::integer_scale(p, head, i).0), head.0), head.1) }
    }
    #[inline(always)]
    unsafe fn integer_scale(p: *const u8, head: (__m512, __m512), i: usize) -> (__m512i, __m512) {
        // SAFETY: the contract of this function.
        (unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.add((2 + i) * PANEL).cast())) }, head.1)
    }
}

/// Two f16 per row, and for each half group a byte of scale and minimum.
pub(crate) struct Nibbles;
impl Nibbles {
    pub(crate) fn put(row: usize, out: &mut [u8], halves: &[u8], bytes: &[u8]) {
        put_halves(row, out, halves);
        bytes.iter().enumerate().for_each(|(i, b)| out[(4 + i) * PANEL + row] = *b);
    }
}
impl Scaling for Nibbles {
    const BYTES: usize = (4 + 16) * PANEL;
    const HALVES: bool = true;
    const INTEGER_SCALES: bool = true;
    const OFFSETS: bool = true;
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { scale_and_minimum(p) }
    }
    #[inline(always)]
    unsafe fn integer_scale(p: *const u8, head: (__m512, __m512), i: usize) -> (__m512i, __m512) {
        // SAFETY: the contract of this function.
        unsafe {
            let both = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.add((4 + i) * PANEL).cast()));
            let low = _mm512_and_si512(both, _mm512_set1_epi32(15));
            let high = _mm512_srli_epi32::<4>(both);
            (low, _mm512_mul_ps(_mm512_cvtepi32_ps(high), head.1))
        }
    }
}

/// One power of two per row, 128 subtracted from its exponent.
pub(crate) struct Exponents;
impl Exponents {
    pub(crate) fn put(row: usize, out: &mut [u8], exponent: u8) {
        out[row] = exponent ^ 0x80;
    }
}
impl Scaling for Exponents {
    const ONE: bool = true;
    const BYTES: usize = PANEL;
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe {
            let exponents = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
            (_mm512_scalef_ps(_mm512_set1_ps(1.0), exponents), _mm512_setzero_ps())
        }
    }
}

/// Half a float of 4 exponent and 3 mantissa bits per row, for each of four half groups.
pub(crate) struct SmallFloats;
impl SmallFloats {
    pub(crate) fn put(row: usize, out: &mut [u8], bits: &[u8; 4]) {
        bits.iter().enumerate().for_each(|(i, b)| out[i * PANEL + row] = *b);
    }
}
impl Scaling for SmallFloats {
    const BYTES: usize = 4 * PANEL;
    const HALVES: bool = true;
    #[inline(always)]
    unsafe fn head(_p: *const u8) -> (__m512, __m512) {
        // SAFETY: AVX-512 is enabled.
        unsafe { (_mm512_setzero_ps(), _mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn at(p: *const u8, head: (__m512, __m512), i: usize) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe {
            let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.add(i * PANEL).cast()));
            // moved to the exponent and mantissa of a half: 2^-8 of the value
            let halves = _mm512_cvtph_ps(_mm256_slli_epi16::<7>(wide));
            (_mm512_mul_ps(halves, _mm512_set1_ps(128.0)), head.1)
        }
    }
}

/// A scale and an offset in f32 per row and half group.
pub(crate) struct Floats;
impl Floats {
    /// Lines of a group.
    pub(crate) const LINES: usize = 4;
    pub(crate) fn put(row: usize, out: &mut [Line], scales: &[f32], offsets: &[f32]) {
        for (line, v) in out.iter_mut().zip(scales.iter().chain(offsets)) {
            let b = v.to_le_bytes();
            line.0[2 * row] = i16::from_le_bytes([b[0], b[1]]);
            line.0[2 * row + 1] = i16::from_le_bytes([b[2], b[3]]);
        }
    }
}
impl Scaling for Floats {
    const BYTES: usize = Self::LINES * size_of::<Line>();
    const HALVES: bool = true;
    const OFFSETS: bool = true;
    #[inline(always)]
    unsafe fn head(_p: *const u8) -> (__m512, __m512) {
        // SAFETY: AVX-512 is enabled.
        unsafe { (_mm512_setzero_ps(), _mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn at(p: *const u8, _head: (__m512, __m512), i: usize) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { (_mm512_loadu_ps(p.add(64 * i).cast()), _mm512_loadu_ps(p.add(64 * (2 + i)).cast())) }
    }
}
