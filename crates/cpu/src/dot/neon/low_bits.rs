//! How the codes and scales of one-bit and ternary formats are loaded into NEON registers.
//!
//! # Safety
//! Every `unsafe` function of this module requires pointers that are valid for the bytes that its comment
//! names: one block for codes, `groups` groups of 32 columns for scales. Every aarch64 has NEON.

use std::arch::aarch64::*;

use super::layout::{Layout, Scales};
use super::layouts::{
    all, block_halves, half_at, has, layout, shifted, spread, table, times, u16_at, u32_at, whole,
};

/// 8 bytes to 32 two-bit codes, the lowest bits first.
#[inline(always)]
unsafe fn two_bit_codes(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: 8 bytes are readable at `p` by the contract.
    unsafe {
        let packed = vcombine_u8(vld1_u8(p), vdup_n_u8(0));
        let shifts = vld1q_s8([0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6].as_ptr());
        let codes = |bytes| vandq_u8(vshlq_u8(vqtbl1q_u8(packed, table(bytes)), shifts), vdupq_n_u8(3));
        [
            codes([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),
            codes([4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7]),
        ]
    }
}

/// The negated next ternary digits of bytes, after multiplying by `powers` of three.
#[inline(always)]
fn trits(packed: uint8x16_t, powers: [u8; 16]) -> uint8x16_t {
    // SAFETY: every aarch64 has NEON.
    unsafe {
        let rest = vmulq_u8(packed, table(powers));
        // 3 * rest / 256 is 1 from 86 on and 2 from 171 on
        vaddq_u8(vcgeq_u8(rest, vdupq_n_u8(86)), vcgeq_u8(rest, vdupq_n_u8(171)))
    }
}

/// Scales of codes that are one too large.
#[inline(always)]
unsafe fn less_one<const BYTES: usize, const PER: usize>(p: *const u8, groups: usize) -> Scales {
    // SAFETY: the caller's chunk has `groups` groups; readable by the contract.
    unsafe {
        let d = block_halves::<BYTES, PER>(p, groups);
        whole(d, times(d, -1.0))
    }
}

layout! {
    /// Bits as 0 and -1: `d * (2 * bit - 1)`.
    Q1_0: 18 / 128;
    codes |block, i| spread(block.add(2 + 4 * i));
    scales |p, groups| {
        let d = block_halves::<18, 4>(p, groups);
        whole(times(d, -2.0), times(d, -1.0))
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
        whole(all(d), all(-d))
    }
}

layout! {
    /// Codes before scales; code 3 counts as 1.
    Tq2_0G128: 34 / 128;
    codes |block, i| {
        let one = |codes| veorq_u8(codes, vandq_u8(vceqq_u8(codes, vdupq_n_u8(3)), vdupq_n_u8(2)));
        let [low, high] = two_bit_codes(block.add(8 * i));
        [one(low), one(high)]
    };
    scales |p, groups| less_one::<34, 4>(p.add(32), groups)
}

layout! {
    /// One scale for all rows.
    I2S: 32 / 128;
    codes |block, i| shifted(block, 6 - 2 * i, 3);
    scales |_p, _groups, tail| {
        let d = f32::from_bits(u32_at(tail.as_ptr()));
        whole(all(d), all(-d))
    }
}

layout! {
    Tq1_0: 54 / 256;
    codes |block, i| {
        let (first, second) = ([vld1q_u8(block), vld1q_u8(block.add(16))], vld1q_u8(block.add(32)));
        match i {
            0..5 => first.map(|bytes| trits(bytes, [[1, 3, 9, 27, 81][i]; 16])),
            5 => [trits(second, [1; 16]), trits(second, [3; 16])],
            6 => [trits(second, [9; 16]), trits(second, [27; 16])],
            _ => {
                let last = vreinterpretq_u8_u32(vdupq_n_u32(u32_at(block.add(48))));
                let powers = [1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27];
                [trits(second, [81; 16]), trits(last, powers)]
            }
        }
    };
    scales |p, _groups| {
        let d = half_at(p.add(52));
        whole(all(-d), all(-d))
    }
}

layout! {
    Ptq1_0: 28 / 128;
    codes |block, i| {
        let (first, second) = (vld1q_u8(block), vld1_u8(block.add(16)));
        let twice = vcombine_u8(second, second);
        match i {
            0 => [trits(first, [1; 16]), trits(first, [3; 16])],
            1 => [trits(first, [9; 16]), trits(first, [27; 16])],
            2 => [trits(first, [81; 16]), trits(twice, [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3])],
            _ => {
                let last = vreinterpret_u8_u16(vdup_n_u16(u16_at(block.add(24))));
                let powers = [9, 9, 9, 9, 9, 9, 9, 9, 27, 27, 27, 27, 27, 27, 27, 27];
                let last_powers = [81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27];
                [trits(twice, powers), trits(vcombine_u8(second, last), last_powers)]
            }
        }
    };
    scales |p, groups| {
        let d = block_halves::<28, 4>(p.add(26), groups);
        whole(times(d, -1.0), times(d, -1.0))
    }
}
