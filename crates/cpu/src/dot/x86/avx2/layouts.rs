//! How the codes and scales of each format are loaded into registers.
//!
//! Codes are made unsigned if that is cheap; the difference is subtracted through the offset. Every layout
//! equals the format's `unpack` in `quant`.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2 and F16C (and the instruction set of `S`), and
//! pointers that are valid for the bytes that its comment names: one block for codes, `groups` groups of 32
//! columns for scales.

use std::arch::x86_64::*;

use crate::dot::x86::avx2::tiles::{Layout, Scales, Simd};

/// One byte in all lanes.
#[inline(always)]
pub(crate) unsafe fn bytes(value: u8) -> __m256i {
    // SAFETY: AVX2 is enabled.
    unsafe { _mm256_set1_epi8(value as i8) }
}

/// 16 bytes to 32 nibbles: the low ones first.
#[inline(always)]
pub(crate) unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: 16 bytes are readable at `p`; AVX2 is enabled.
    unsafe {
        let packed = _mm_loadu_si128(p.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
        _mm256_and_si256(both, bytes(0x0F))
    }
}

/// Twice 8 bytes to 16 nibbles: the low ones of each first.
#[inline(always)]
pub(crate) unsafe fn nibbles_of_eight(p: *const u8) -> __m256i {
    // SAFETY: as for `nibbles`.
    unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(nibbles(p)) }
}

/// `(32 bytes >> shift) & mask`, with a mask that clears the bits of the next byte.
#[inline(always)]
pub(crate) unsafe fn shifted(p: *const u8, shift: usize, mask: u8) -> __m256i {
    // SAFETY: 32 bytes are readable at `p`; AVX2 is enabled.
    unsafe {
        let v = _mm256_srl_epi16(_mm256_loadu_si256(p.cast()), _mm_cvtsi32_si128(shift as i32));
        _mm256_and_si256(v, bytes(mask))
    }
}

/// 32 bits to 32 bytes of 0x00 or 0xFF.
#[inline(always)]
pub(crate) unsafe fn spread_at<S: Simd>(p: *const u8) -> __m256i {
    // SAFETY: 4 bytes are readable at `p`; the features of `S` are enabled.
    unsafe { S::spread(u32_at(p)) }
}

#[inline(always)]
pub(crate) unsafe fn u32_at(p: *const u8) -> u32 {
    // SAFETY: 4 bytes are readable at `p`.
    unsafe { p.cast::<u32>().read_unaligned() }
}

#[inline(always)]
pub(crate) unsafe fn half_at(p: *const u8) -> f32 {
    // SAFETY: two bytes are readable there; F16C is enabled.
    unsafe {
        let bits = i32::from(p.cast::<u16>().read_unaligned());
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
    }
}

/// The half at byte `at` of each of up to eight blocks.
#[inline(always)]
unsafe fn halves_at<const BYTES: usize>(p: *const u8, at: usize, blocks: usize) -> __m256 {
    // assembled in general registers: the vector unit's shuffle port is the bottleneck of these loops
    let four = |first: usize| {
        let mut packed = 0u64;
        for i in first..first + 4 {
            if i < blocks {
                // SAFETY: the chunk has `blocks` blocks.
                let half = unsafe { p.add(i * BYTES + at).cast::<u16>().read_unaligned() };
                packed |= u64::from(half) << (16 * (i - first));
            }
        }
        packed as i64
    };
    // SAFETY: F16C is enabled.
    unsafe { _mm256_cvtph_ps(_mm_set_epi64x(four(4), four(0))) }
}

/// The scale at the start of each block, for blocks of `PER` groups.
#[inline(always)]
pub(crate) unsafe fn block_scales<const BYTES: usize, const PER: usize>(
    p: *const u8,
    groups: usize,
) -> __m256 {
    let mut d = [0.0f32; 8];
    for b in 0..groups / PER {
        // SAFETY: the chunk has `groups / PER` blocks; F16C is enabled.
        d[b * PER..(b + 1) * PER].fill(unsafe { half_at(p.add(b * BYTES)) });
    }
    // SAFETY: `d` has eight values.
    unsafe { _mm256_loadu_ps(d.as_ptr()) }
}

#[inline(always)]
pub(crate) unsafe fn times(v: __m256, by: f32) -> __m256 {
    // SAFETY: AVX2 is enabled.
    unsafe { _mm256_mul_ps(v, _mm256_set1_ps(by)) }
}

/// One scale and one offset per group of 32.
#[inline(always)]
pub(crate) unsafe fn whole(scales: __m256, offsets: __m256) -> Scales {
    // SAFETY: AVX2 is enabled.
    let none = unsafe { _mm256_setzero_ps() };
    Scales { scales: [scales, none], offsets: [offsets, none] }
}

/// One scale per group of 16, and that scale times `offset` as its offset.
#[inline(always)]
unsafe fn halves(scales: [__m256; 2], offset: f32) -> Scales {
    // SAFETY: AVX2 is enabled.
    Scales { scales, offsets: scales.map(|s| unsafe { times(s, offset) }) }
}

/// Sixteen bytes as floats times a factor.
#[inline(always)]
unsafe fn sixteen(v: __m128i, signed: bool, by: f32) -> [__m256; 2] {
    // SAFETY: AVX2 is enabled.
    [v, unsafe { _mm_srli_si128::<8>(v) }].map(|v| unsafe {
        let wide = if signed { _mm256_cvtepi8_epi32(v) } else { _mm256_cvtepu8_epi32(v) };
        times(_mm256_cvtepi32_ps(wide), by)
    })
}

/// Whether a flag is in a list.
macro_rules! has {
    ($want:ident) => { false };
    (SIGNED SIGNED $($rest:ident)*) => { true };
    (HALVES HALVES $($rest:ident)*) => { true };
    ($want:ident $other:ident $($rest:ident)*) => { has!($want $($rest)*) };
}

/// Declares a layout: block bytes, block length, flags, codes of sub-block `i`, and scales of a chunk.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident: $bytes:literal / $len:literal $(, $flag:ident)*;
     codes |$block:ident, $i:ident| $codes:expr;
     scales |$p:ident, $groups:ident $(, $tail:ident)?| $scales:expr) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Layout for $name {
            const BYTES: usize = $bytes;
            const LEN: usize = $len;
            const SIGNED: bool = has!(SIGNED $($flag)*);
            const HALVES: bool = has!(HALVES $($flag)*);
            #[inline(always)]
            unsafe fn codes<S: Simd>($block: *const u8, $i: usize) -> __m256i {
                // SAFETY: the caller's block is whole; the features of `S` are enabled.
                unsafe { $codes }
            }
            #[inline(always)]
            unsafe fn scales($p: *const u8, $groups: usize, tail: &[u8]) -> Scales {
                let _ = tail;
                $(let $tail = tail;)?
                // SAFETY: the caller's chunk has `groups` groups; AVX2 and F16C are enabled.
                unsafe { $scales }
            }
        }
    };
}

pub(crate) use {has, layout};

layout! {
    Q4_0: 18 / 32;
    codes |block, _i| nibbles(block.add(2));
    scales |p, groups| {
        let d = halves_at::<18>(p, 0, groups);
        whole(d, times(d, -8.0))
    }
}

layout! {
    Q4_1: 20 / 32;
    codes |block, _i| nibbles(block.add(4));
    scales |p, groups| {
        whole(halves_at::<20>(p, 0, groups), halves_at::<20>(p, 2, groups))
    }
}

/// The scales and zero points of blocks of `PER` groups.
#[inline(always)]
unsafe fn zero_points<const BYTES: usize, const PER: usize>(p: *const u8, groups: usize) -> Scales {
    let (mut d, mut offsets) = ([0.0f32; 8], [0.0f32; 8]);
    for b in 0..groups / PER {
        // SAFETY: the chunk has `groups / PER` blocks.
        let (scale, zero) = unsafe { (f32::from_bits(u32_at(p.add(b * BYTES))), *p.add(b * BYTES + 4)) };
        d[b * PER..(b + 1) * PER].fill(scale);
        offsets[b * PER..(b + 1) * PER].fill(-(scale * f32::from(zero)));
    }
    // SAFETY: both have eight values.
    unsafe { whole(_mm256_loadu_ps(d.as_ptr()), _mm256_loadu_ps(offsets.as_ptr())) }
}

layout! {
    Int4G32: 21 / 32;
    codes |block, _i| nibbles(block.add(5));
    scales |p, groups| zero_points::<21, 1>(p, groups)
}

layout! {
    Int4G128: 69 / 128;
    codes |block, i| nibbles(block.add(5 + 16 * i));
    scales |p, groups| zero_points::<69, 4>(p, groups)
}

layout! {
    Q5_0: 22 / 32;
    codes |block, _i| {
        let fifth = _mm256_and_si256(spread_at::<S>(block.add(2)), bytes(0x10));
        _mm256_or_si256(nibbles(block.add(6)), fifth)
    };
    scales |p, groups| {
        let d = halves_at::<22>(p, 0, groups);
        whole(d, times(d, -16.0))
    }
}

layout! {
    Q5_1: 24 / 32;
    codes |block, _i| {
        let fifth = _mm256_and_si256(spread_at::<S>(block.add(4)), bytes(0x10));
        _mm256_or_si256(nibbles(block.add(8)), fifth)
    };
    scales |p, groups| {
        whole(halves_at::<24>(p, 0, groups), halves_at::<24>(p, 2, groups))
    }
}

layout! {
    Q8_0: 34 / 32, SIGNED;
    codes |block, _i| _mm256_loadu_si256(block.add(2).cast());
    scales |p, groups| {
        let d = halves_at::<34>(p, 0, groups);
        whole(d, _mm256_setzero_ps())
    }
}

layout! {
    Q2K: 84 / 256, HALVES;
    codes |block, i| shifted(block.add(16 + 32 * (i / 4)), 2 * (i % 4), 3);
    scales |p, _groups| {
        let packed = _mm_loadu_si128(p.cast());
        let low = _mm_and_si128(packed, _mm_set1_epi8(15));
        let high = _mm_and_si128(_mm_srli_epi16::<4>(packed), _mm_set1_epi8(15));
        Scales {
            scales: sixteen(low, false, half_at(p.add(80))),
            offsets: sixteen(high, false, -half_at(p.add(82))),
        }
    }
}

/// The 16 scales of a Q3_K block, as signed bytes.
#[inline(always)]
pub(crate) fn q3_k_scales(block: &[u8]) -> [u8; 16] {
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let words = [word(96), word(100), word(104)];
    let mut out = [0; 16];
    for (i, four) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let low = words[i % 2] >> (4 * (i / 2)) & 0x0F0F_0F0F;
        let six = low | (words[2] >> (2 * i) & 0x0303_0303) << 4;
        *four = six.to_le_bytes().map(|s| s.wrapping_sub(32));
    }
    out
}

layout! {
    /// `q2 - (bit ? 0 : 4)`, as `q2 + 4 * bit` and an offset of -4.
    Q3K: 110 / 256, HALVES;
    codes |block, i| {
        let low = shifted(block.add(32 + 32 * (i / 4)), 2 * (i % 4), 3);
        let high = shifted(block, i, 1);
        _mm256_or_si256(low, _mm256_slli_epi16::<2>(high))
    };
    scales |p, _groups| {
        let packed = q3_k_scales(std::slice::from_raw_parts(p, 110));
        let packed = _mm_loadu_si128(packed.as_ptr().cast());
        halves(sixteen(packed, true, half_at(p.add(108))), -4.0)
    }
}

/// The 6-bit scales and minimums of Q4_K and Q5_K, one byte each.
#[inline(always)]
pub(crate) fn six_bits(block: &[u8]) -> ([u8; 8], [u8; 8]) {
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (low, middle, high) = (word(4), word(8), word(12));
    let scales = [low & 0x3F3F_3F3F, high & 0x0F0F_0F0F | (low >> 6 & 0x0303_0303) << 4];
    let mins = [middle & 0x3F3F_3F3F, high >> 4 & 0x0F0F_0F0F | (middle >> 6 & 0x0303_0303) << 4];
    let bytes = |w: [u32; 2]| (u64::from(w[0]) | u64::from(w[1]) << 32).to_le_bytes();
    (bytes(scales), bytes(mins))
}

#[inline(always)]
unsafe fn k_scales(p: *const u8) -> Scales {
    // SAFETY: a whole block is readable at `p`; AVX2 and F16C are enabled.
    unsafe {
        let (scales, mins) = six_bits(std::slice::from_raw_parts(p, 16));
        let all = _mm_set_epi64x(i64::from_le_bytes(mins), i64::from_le_bytes(scales));
        let [scales, mins] = sixteen(all, false, 1.0);
        whole(times(scales, half_at(p)), times(mins, -half_at(p.add(2))))
    }
}

layout! {
    Q4K: 144 / 256;
    codes |block, i| shifted(block.add(16 + 32 * (i / 2)), 4 * (i % 2), 0x0F);
    scales |p, _groups| k_scales(p)
}

layout! {
    Q5K: 176 / 256;
    codes |block, i| {
        let low = shifted(block.add(48 + 32 * (i / 2)), 4 * (i % 2), 0x0F);
        let high = shifted(block.add(16), i, 1);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    };
    scales |p, _groups| k_scales(p)
}

layout! {
    Q6K: 210 / 256, HALVES;
    codes |block, i| {
        let (half, j) = (i / 4, i % 4);
        let low = shifted(block.add(64 * half + 32 * (j % 2)), 4 * (j / 2), 0x0F);
        let high = shifted(block.add(128 + 32 * half), 2 * j, 3);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    };
    scales |p, _groups| {
        let packed = _mm_loadu_si128(p.add(192).cast());
        halves(sixteen(packed, true, half_at(p.add(208))), -32.0)
    }
}

/// The values of the non-linear 4-bit formats.
pub(crate) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The four-bit floats, doubled.
pub(crate) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Nibbles to values of a table.
#[inline(always)]
unsafe fn looked_up(table: &[i8; 16], nibbles: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes; AVX2 is enabled.
    unsafe {
        let table = _mm_loadu_si128(table.as_ptr().cast());
        _mm256_shuffle_epi8(_mm256_set_m128i(table, table), nibbles)
    }
}

/// The eight scales of an IQ4_XS block, as signed bytes.
#[inline(always)]
pub(crate) fn iq4_xs_scales(block: &[u8]) -> [u8; 8] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    std::array::from_fn(|g| {
        let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
        (low | ((high >> (2 * g) & 3) as u8) << 4).wrapping_sub(32)
    })
}

layout! {
    Iq4Nl: 18 / 32, SIGNED;
    codes |block, _i| looked_up(&IQ4, nibbles(block.add(2)));
    scales |p, groups| {
        let d = halves_at::<18>(p, 0, groups);
        whole(d, _mm256_setzero_ps())
    }
}

layout! {
    Iq4Xs: 136 / 256, SIGNED;
    codes |block, i| looked_up(&IQ4, nibbles(block.add(8 + 16 * i)));
    scales |p, _groups| {
        let packed = iq4_xs_scales(std::slice::from_raw_parts(p, 8));
        let d = half_at(p);
        let scales = packed.map(|s| d * f32::from(s as i8));
        whole(_mm256_loadu_ps(scales.as_ptr()), _mm256_setzero_ps())
    }
}

layout! {
    Mxfp4: 17 / 32, SIGNED;
    codes |block, _i| looked_up(&E2M1, nibbles(block.add(1)));
    scales |p, groups| {
        let mut exponents = [-1; 8]; // missing groups: the scale is zero
        for (g, e) in exponents.iter_mut().enumerate().take(groups) {
            *e = i32::from(*p.add(17 * g));
        }
        let e = _mm256_loadu_si256(exponents.as_ptr().cast());
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
        // below the smallest normal float the mantissa changes instead of the exponent
        let bit = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), _mm256_min_epi32(e, _mm256_set1_epi32(2)));
        whole(_mm256_castsi256_ps(_mm256_max_epi32(normal, bit)), _mm256_setzero_ps())
    }
}

/// The scales of an NVFP4 block without the sign bit; NaN becomes zero.
#[inline(always)]
pub(crate) fn nvfp4_scales(block: &[u8]) -> [u8; 4] {
    std::array::from_fn(|i| if block[i] == 0x7F { 0 } else { block[i] & 0x7F })
}

layout! {
    Nvfp4: 36 / 64, SIGNED, HALVES;
    codes |block, i| looked_up(&E2M1, nibbles_of_eight(block.add(4 + 16 * i)));
    scales |p, groups| {
        let mut bits = [[0; 4]; 4];
        for (b, bits) in bits.iter_mut().enumerate().take(groups / 2) {
            *bits = nvfp4_scales(std::slice::from_raw_parts(p.add(36 * b), 4));
        }
        // moved to the exponent and mantissa of a half: 2^-8 of the value
        let wide = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(_mm_loadu_si128(bits.as_ptr().cast())));
        let first = _mm256_cvtph_ps(_mm256_castsi256_si128(wide));
        let second = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(wide));
        Scales { scales: [times(first, 128.0), times(second, 128.0)], offsets: [_mm256_setzero_ps(); 2] }
    }
}
