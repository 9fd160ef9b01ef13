//! How the codes and scales of one-bit and ternary formats are loaded into registers.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2 and F16C (and the instruction set of `S`), and
//! pointers that are valid for the bytes that its comment names: one block for codes, `groups` groups of 32
//! columns for scales.

use std::arch::x86_64::*;

use crate::dot::x86::avx2::layouts::{
    block_scales, bytes, half_at, has, layout, shifted, spread_at, times, u32_at, whole,
};
use crate::dot::x86::avx2::tiles::{Layout, Scales, Simd};

/// 8 bytes to 32 two-bit codes, the lowest bits first.
#[inline(always)]
unsafe fn two_bit_codes(p: *const u8) -> __m256i {
    // SAFETY: 8 bytes are readable at `p`; AVX2 is enabled.
    unsafe {
        let x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())); // one byte per lane
        let x =
            _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32::<12>(x)), _mm256_set1_epi32(0x000F_000F));
        _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32::<6>(x)), _mm256_set1_epi32(0x0303_0303))
    }
}

/// The next ternary digits of bytes, after multiplying by `powers` of three, one word each.
#[inline(always)]
unsafe fn trits(packed: __m256i, powers: [i16; 16]) -> __m256i {
    // SAFETY: AVX2 is enabled.
    unsafe {
        let powers = _mm256_loadu_si256(powers.as_ptr().cast());
        let (low, high) = (_mm256_set1_epi16(0x00FF), _mm256_set1_epi16(-256));
        let even = _mm256_and_si256(_mm256_mullo_epi16(packed, powers), low);
        let rest = _mm256_or_si256(even, _mm256_mullo_epi16(_mm256_and_si256(packed, high), powers));
        // 3 * rest / 256 is 1 from 86 on and 2 from 171 on
        let one = _mm256_cmpeq_epi8(_mm256_max_epu8(rest, bytes(86)), rest);
        let two = _mm256_cmpeq_epi8(_mm256_max_epu8(rest, bytes(171)), rest);
        _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one, two))
    }
}

/// 16 bytes from each of two pointers.
#[inline(always)]
unsafe fn both(first: *const u8, second: __m128i) -> __m256i {
    // SAFETY: 16 bytes are readable at `first`; AVX2 is enabled.
    unsafe { _mm256_set_m128i(second, _mm_loadu_si128(first.cast())) }
}

/// Eight bytes twice.
#[inline(always)]
unsafe fn twice(p: *const u8) -> __m128i {
    // SAFETY: eight bytes are readable at `p`; AVX2 is enabled.
    unsafe { _mm_set1_epi64x(p.cast::<i64>().read_unaligned()) }
}

/// Scales of codes that are one too large.
#[inline(always)]
unsafe fn less_one<const BYTES: usize, const PER: usize>(p: *const u8, groups: usize) -> Scales {
    // SAFETY: the caller's chunk has `groups` groups; AVX2 and F16C are enabled.
    unsafe {
        let d = block_scales::<BYTES, PER>(p, groups);
        whole(d, times(d, -1.0))
    }
}

layout! {
    /// Bits as 0 and 1: `d * (2 * bit - 1)`.
    Q1_0: 18 / 128;
    codes |block, i| _mm256_and_si256(spread_at::<S>(block.add(2 + 4 * i)), bytes(1));
    scales |p, groups| {
        let d = block_scales::<18, 4>(p, groups);
        whole(_mm256_add_ps(d, d), times(d, -1.0))
    }
}

layout! {
    Q2_0: 18 / 64;
    codes |block, i| two_bit_codes(block.add(2 + 8 * i));
    scales |p, groups| less_one::<18, 2>(p, groups)
}

layout! {
    Pq2_0: 34 / 128;
    codes |block, i| two_bit_codes(block.add(2 + 8 * i));
    scales |p, groups| less_one::<34, 4>(p, groups)
}

layout! {
    Tq2_0: 66 / 256;
    codes |block, i| shifted(block.add(32 * (i / 4)), 2 * (i % 4), 3);
    scales |p, _groups| {
        let d = half_at(p.add(64));
        whole(_mm256_set1_ps(d), _mm256_set1_ps(-d))
    }
}

layout! {
    /// Codes before scales; code 3 counts as 1.
    Tq2_0G128: 34 / 128;
    codes |block, i| {
        let codes = two_bit_codes(block.add(8 * i));
        _mm256_xor_si256(codes, _mm256_and_si256(_mm256_cmpeq_epi8(codes, bytes(3)), bytes(2)))
    };
    scales |p, groups| less_one::<34, 4>(p.add(32), groups)
}

layout! {
    /// One scale for all rows.
    I2S: 32 / 128;
    codes |block, i| shifted(block, 6 - 2 * i, 3);
    scales |_p, groups, tail| {
        let d = f32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
        let scales: [f32; 8] = std::array::from_fn(|g| if g < groups { d } else { 0.0 });
        let d = _mm256_loadu_ps(scales.as_ptr());
        whole(d, times(d, -1.0))
    }
}

layout! {
    Tq1_0: 54 / 256;
    codes |block, i| {
        let second = _mm_loadu_si128(block.add(32).cast());
        match i {
            0..5 => trits(_mm256_loadu_si256(block.cast()), [[1, 3, 9, 27, 81][i]; 16]),
            5 => trits(both(block.add(32), second), [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3]),
            6 => trits(both(block.add(32), second), [9, 9, 9, 9, 9, 9, 9, 9, 27, 27, 27, 27, 27, 27, 27, 27]),
            _ => {
                let last = _mm_set1_epi32(u32_at(block.add(48)) as i32);
                let powers = [81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27];
                trits(both(block.add(32), last), powers)
            }
        }
    };
    scales |p, _groups| {
        let d = half_at(p.add(52));
        whole(_mm256_set1_ps(d), _mm256_set1_ps(-d))
    }
}

layout! {
    Ptq1_0: 28 / 128;
    codes |block, i| {
        let first = _mm_loadu_si128(block.cast());
        match i {
            0 => trits(both(block, first), [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3]),
            1 => trits(both(block, first), [9, 9, 9, 9, 9, 9, 9, 9, 27, 27, 27, 27, 27, 27, 27, 27]),
            2 => {
                let powers = [81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 1, 1, 3, 3, 3, 3];
                trits(both(block, twice(block.add(16))), powers)
            }
            _ => {
                let second = twice(block.add(16));
                let last = _mm_set1_epi16(block.add(24).cast::<i16>().read_unaligned());
                let last = _mm256_set_m128i(_mm_unpacklo_epi64(second, last), second);
                trits(last, [9, 9, 9, 9, 27, 27, 27, 27, 81, 81, 81, 81, 1, 3, 9, 27])
            }
        }
    };
    scales |p, groups| less_one::<28, 4>(p.add(26), groups)
}
