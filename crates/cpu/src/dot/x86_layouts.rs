//! How 32 codes of each format come into an AVX2 register.
//!
//! Codes are made unsigned where that is cheap; what was added comes off again through the offset. Every layout
//! equals the format's `unpack` in `quant`.

use std::arch::x86_64::*;

use super::x86::{Layout, Simd, half_at};

/// Bytes of `low` mask.
#[inline(always)]
unsafe fn bytes(value: u8) -> __m256i {
    // SAFETY: called under AVX2.
    unsafe { _mm256_set1_epi8(value as i8) }
}

/// 16 bytes to 32 nibbles: the low ones first.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: 16 bytes are readable at `p`; called under AVX2.
    unsafe {
        let packed = _mm_loadu_si128(p.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
        _mm256_and_si256(both, bytes(0x0F))
    }
}

/// `(32 bytes >> shift) & mask`, where nothing from the next byte survives the mask.
#[inline(always)]
unsafe fn shifted(p: *const u8, shift: usize, mask: u8) -> __m256i {
    // SAFETY: 32 bytes are readable at `p`; called under AVX2.
    unsafe {
        let v = _mm256_srl_epi16(_mm256_loadu_si256(p.cast()), _mm_cvtsi32_si128(shift as i32));
        _mm256_and_si256(v, bytes(mask))
    }
}

/// 8 bytes to 32 two-bit codes, the lowest bits first.
#[inline(always)]
unsafe fn two_bit_codes(p: *const u8) -> __m256i {
    // SAFETY: 8 bytes are readable at `p`; called under AVX2.
    unsafe {
        let x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())); // one byte a lane
        let x =
            _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32::<12>(x)), _mm256_set1_epi32(0x000F_000F));
        _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32::<6>(x)), _mm256_set1_epi32(0x0303_0303))
    }
}

#[inline(always)]
unsafe fn u32_at(p: *const u8) -> u32 {
    // SAFETY: 4 bytes are readable at `p`.
    unsafe { p.cast::<u32>().read_unaligned() }
}

/// Whether a flag is in a list.
macro_rules! has {
    ($want:ident) => { false };
    (SIGNED SIGNED $($rest:ident)*) => { true };
    (HALVES HALVES $($rest:ident)*) => { true };
    (OFFSETS OFFSETS $($rest:ident)*) => { true };
    ($want:ident $other:ident $($rest:ident)*) => { has!($want $($rest)*) };
}
/// Declares a layout: block bytes, block length, flags, codes of sub-block `i`, scales.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident: $bytes:literal / $len:literal $(, $flag:ident)*;
     codes |$block:ident, $i:ident| $codes:expr;
     scales |$p:ident, $s:ident, $o:ident| $scales:expr) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Layout for $name {
            const BYTES: usize = $bytes;
            const LEN: usize = $len;
            const SIGNED: bool = has!(SIGNED $($flag)*);
            const HALVES: bool = has!(HALVES $($flag)*);
            const OFFSETS: bool = has!(OFFSETS $($flag)*);
            #[inline(always)]
            unsafe fn codes<S: Simd>($block: *const u8, $i: usize) -> __m256i {
                // SAFETY: the caller's block is whole; called under the features of `S`.
                unsafe { $codes }
            }
            #[inline(always)]
            unsafe fn scales($p: *const u8, $s: &mut [f32; 16], $o: &mut [f32; 16]) {
                // SAFETY: the caller's block is whole; called under AVX2 and F16C.
                unsafe { $scales }
            }
        }
    };
}

layout! {
    /// Bits as 0 and 1: `d * (2 * bit - 1)`.
    Q1_0: 18 / 128, OFFSETS;
    codes |block, i| _mm256_and_si256(spread_at::<S>(block.add(2 + 4 * i)), bytes(1));
    scales |p, s, o| {
        let d = half_at(p);
        s[..4].fill(2.0 * d);
        o[..4].fill(-d);
    }
}

#[inline(always)]
unsafe fn spread_at<S: Simd>(p: *const u8) -> __m256i {
    // SAFETY: 4 bytes are readable at `p`; called under the features of `S`.
    unsafe { S::spread(u32_at(p)) }
}

layout! {
    Q2_0: 18 / 64, OFFSETS;
    codes |block, i| two_bit_codes(block.add(2 + 8 * i));
    scales |p, s, o| {
        let d = half_at(p);
        s[..2].fill(d);
        o[..2].fill(-d);
    }
}

layout! {
    Pq2_0: 34 / 128, OFFSETS;
    codes |block, i| two_bit_codes(block.add(2 + 8 * i));
    scales |p, s, o| {
        let d = half_at(p);
        s[..4].fill(d);
        o[..4].fill(-d);
    }
}

layout! {
    Tq2_0: 66 / 256, OFFSETS;
    codes |block, i| shifted(block.add(32 * (i / 4)), 2 * (i % 4), 3);
    scales |p, s, o| {
        let d = half_at(p.add(64));
        s[..8].fill(d);
        o[..8].fill(-d);
    }
}

layout! {
    Q4_0: 18 / 32, OFFSETS;
    codes |block, _i| nibbles(block.add(2));
    scales |p, s, o| {
        s[0] = half_at(p);
        o[0] = -8.0 * s[0];
    }
}

layout! {
    Q4_1: 20 / 32, OFFSETS;
    codes |block, _i| nibbles(block.add(4));
    scales |p, s, o| {
        s[0] = half_at(p);
        o[0] = half_at(p.add(2));
    }
}

layout! {
    Q5_0: 22 / 32, OFFSETS;
    codes |block, _i| {
        let fifth = _mm256_and_si256(spread_at::<S>(block.add(2)), bytes(0x10));
        _mm256_or_si256(nibbles(block.add(6)), fifth)
    };
    scales |p, s, o| {
        s[0] = half_at(p);
        o[0] = -16.0 * s[0];
    }
}

layout! {
    Q5_1: 24 / 32, OFFSETS;
    codes |block, _i| {
        let fifth = _mm256_and_si256(spread_at::<S>(block.add(4)), bytes(0x10));
        _mm256_or_si256(nibbles(block.add(8)), fifth)
    };
    scales |p, s, o| {
        s[0] = half_at(p);
        o[0] = half_at(p.add(2));
    }
}

layout! {
    Q8_0: 34 / 32, SIGNED;
    codes |block, _i| _mm256_loadu_si256(block.add(2).cast());
    scales |p, s, _o| s[0] = half_at(p)
}

layout! {
    Q2K: 84 / 256, HALVES, OFFSETS;
    codes |block, i| shifted(block.add(16 + 32 * (i / 4)), 2 * (i % 4), 3);
    scales |p, s, o| {
        let (d, min) = (half_at(p.add(80)), half_at(p.add(82)));
        for g in 0..16 {
            let packed = *p.add(g);
            s[g] = d * f32::from(packed & 15);
            o[g] = -min * f32::from(packed >> 4);
        }
    }
}

layout! {
    /// `q2 - (bit ? 0 : 4)`, as `q2 + 4 * bit` and an offset of -4.
    Q3K: 110 / 256, HALVES, OFFSETS;
    codes |block, i| {
        let low = shifted(block.add(32 + 32 * (i / 4)), 2 * (i % 4), 3);
        let high = shifted(block, i, 1);
        _mm256_or_si256(low, _mm256_slli_epi16::<2>(high))
    };
    scales |p, s, o| {
        let d = half_at(p.add(108));
        let packed = p.add(96);
        for g in 0..16 {
            let low = *packed.add(g % 8) >> (4 * (g / 8)) & 15;
            let high = *packed.add(8 + g % 4) >> (2 * (g / 4)) & 3;
            s[g] = d * (f32::from(low | high << 4) - 32.0);
            o[g] = -4.0 * s[g];
        }
    }
}

/// The 6-bit scales and mins of Q4_K and Q5_K.
#[inline(always)]
unsafe fn k_scales(p: *const u8, s: &mut [f32; 16], o: &mut [f32; 16]) {
    // SAFETY: a whole block is readable at `p`; called under F16C.
    unsafe {
        let (d, min) = (half_at(p), half_at(p.add(2)));
        let words = [u32_at(p.add(4)), u32_at(p.add(8)), u32_at(p.add(12))];
        let scales = [words[0] & 0x3F3F_3F3F, words[2] & 0x0F0F_0F0F | (words[0] >> 6 & 0x0303_0303) << 4];
        let mins = [words[1] & 0x3F3F_3F3F, words[2] >> 4 & 0x0F0F_0F0F | (words[1] >> 6 & 0x0303_0303) << 4];
        for half in 0..2 {
            for (j, (sc, m)) in scales[half].to_le_bytes().iter().zip(mins[half].to_le_bytes()).enumerate() {
                s[4 * half + j] = d * f32::from(*sc);
                o[4 * half + j] = -min * f32::from(m);
            }
        }
    }
}

layout! {
    Q4K: 144 / 256, OFFSETS;
    codes |block, i| shifted(block.add(16 + 32 * (i / 2)), 4 * (i % 2), 0x0F);
    scales |p, s, o| k_scales(p, s, o)
}

layout! {
    Q5K: 176 / 256, OFFSETS;
    codes |block, i| {
        let low = shifted(block.add(48 + 32 * (i / 2)), 4 * (i % 2), 0x0F);
        let high = shifted(block.add(16), i, 1);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    };
    scales |p, s, o| k_scales(p, s, o)
}

layout! {
    Q6K: 210 / 256, HALVES, OFFSETS;
    codes |block, i| {
        let (half, j) = (i / 4, i % 4);
        let low = shifted(block.add(64 * half + 32 * (j % 2)), 4 * (j / 2), 0x0F);
        let high = shifted(block.add(128 + 32 * half), 2 * j, 3);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    };
    scales |p, s, o| {
        let d = half_at(p.add(208));
        for g in 0..16 {
            s[g] = d * f32::from(*p.add(192 + g) as i8);
            o[g] = -32.0 * s[g];
        }
    }
}

/// The values of the non-linear 4-bit formats, in both halves of a register.
#[inline(always)]
unsafe fn iq4_values(nibbles: __m256i) -> __m256i {
    // SAFETY: called under AVX2.
    unsafe {
        let table = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
        _mm256_shuffle_epi8(_mm256_set_m128i(table, table), nibbles)
    }
}

layout! {
    Iq4Nl: 18 / 32, SIGNED;
    codes |block, _i| iq4_values(nibbles(block.add(2)));
    scales |p, s, _o| s[0] = half_at(p)
}

layout! {
    Iq4Xs: 136 / 256, SIGNED;
    codes |block, i| iq4_values(nibbles(block.add(8 + 16 * i)));
    scales |p, s, _o| {
        let d = half_at(p);
        let high = p.add(2).cast::<u16>().read_unaligned();
        for g in 0..8 {
            let low = *p.add(4 + g / 2) >> (4 * (g % 2)) & 15;
            let scale = i32::from(low) | i32::from(high >> (2 * g) & 3) << 4;
            s[g] = d * (scale - 32) as f32;
        }
    }
}
