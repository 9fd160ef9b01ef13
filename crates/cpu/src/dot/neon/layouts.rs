//! How the codes and scales of each format are loaded into NEON registers.
//!
//! Codes are kept unsigned if that is cheap; the difference is subtracted through the offset. Every layout
//! equals the format's `unpack` in `quant`.
//!
//! # Safety
//! Every `unsafe` function of this module requires pointers that are valid for the bytes that its comment
//! names: one block for codes, `groups` groups of 32 columns for scales. Every aarch64 has NEON.

use std::arch::aarch64::*;

use super::floats::load_halves;
use super::layout::{Layout, Scales};

/// A register of these bytes.
#[inline(always)]
pub(crate) fn table(bytes: [u8; 16]) -> uint8x16_t {
    // SAFETY: the array has 16 bytes; every aarch64 has NEON.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// 16 bytes to 32 nibbles: the low ones first.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: 16 bytes are readable at `p` by the contract.
    unsafe {
        let packed = vld1q_u8(p);
        [vandq_u8(packed, vdupq_n_u8(0x0F)), vshrq_n_u8::<4>(packed)]
    }
}

/// `(32 bytes >> shift) & mask`
#[inline(always)]
pub(crate) unsafe fn shifted(p: *const u8, shift: usize, mask: u8) -> [uint8x16_t; 2] {
    // SAFETY: 32 bytes are readable at `p` by the contract.
    unsafe {
        let (shift, mask) = (vdupq_n_s8(-(shift as i8)), vdupq_n_u8(mask));
        [vandq_u8(vshlq_u8(vld1q_u8(p), shift), mask), vandq_u8(vshlq_u8(vld1q_u8(p.add(16)), shift), mask)]
    }
}

/// `low | high << SHIFT`
#[inline(always)]
fn joined<const SHIFT: i32>(low: [uint8x16_t; 2], high: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: every aarch64 has NEON.
    unsafe {
        [vorrq_u8(low[0], vshlq_n_u8::<SHIFT>(high[0])), vorrq_u8(low[1], vshlq_n_u8::<SHIFT>(high[1]))]
    }
}

/// 32 bits to 32 bytes of 0x00 or 0xFF.
#[inline(always)]
pub(crate) unsafe fn spread(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: 4 bytes are readable at `p` by the contract.
    unsafe {
        let packed = vreinterpretq_u8_u32(vdupq_n_u32(u32_at(p)));
        let bits = table([1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
        let spread = |bytes| vtstq_u8(vqtbl1q_u8(packed, table(bytes)), bits);
        [
            spread([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
            spread([2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]),
        ]
    }
}

/// 16 bytes to 32 five-bit codes, with the fifth bits from another pointer.
#[inline(always)]
unsafe fn five_bit_codes(low: *const u8, fifth: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: 16 and 4 bytes are readable there by the contract.
    unsafe {
        let (low, fifth, bit) = (nibbles(low), spread(fifth), vdupq_n_u8(0x10));
        [vorrq_u8(low[0], vandq_u8(fifth[0], bit)), vorrq_u8(low[1], vandq_u8(fifth[1], bit))]
    }
}

/// The values of the non-linear 4-bit formats.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The four-bit floats, doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Nibbles to values of a table.
#[inline(always)]
fn looked_up(table: &[i8; 16], nibbles: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: the table has 16 values; every aarch64 has NEON.
    unsafe {
        let values = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
        [vqtbl1q_u8(values, nibbles[0]), vqtbl1q_u8(values, nibbles[1])]
    }
}

/// Twice 8 bytes to 16 nibbles: the low ones of each first.
#[inline(always)]
unsafe fn nibbles_of_eight(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: 16 bytes are readable at `p` by the contract.
    unsafe {
        let [low, high] = nibbles(p);
        [vcombine_u8(vget_low_u8(low), vget_low_u8(high)), vcombine_u8(vget_high_u8(low), vget_high_u8(high))]
    }
}

#[inline(always)]
pub(crate) unsafe fn u32_at(p: *const u8) -> u32 {
    // SAFETY: 4 bytes are readable at `p` by the contract.
    unsafe { p.cast::<u32>().read_unaligned() }
}

#[inline(always)]
pub(crate) unsafe fn u16_at(p: *const u8) -> u16 {
    // SAFETY: 2 bytes are readable at `p` by the contract.
    unsafe { p.cast::<u16>().read_unaligned() }
}

#[inline(always)]
pub(crate) unsafe fn half_at(p: *const u8) -> f32 {
    // SAFETY: 2 bytes are readable at `p` by the contract.
    unsafe { vgetq_lane_f32::<0>(load_halves([u16_at(p); 4].as_ptr())) }
}

/// One half of each block, for each of eight groups of which `PER` share a block.
#[inline(always)]
pub(crate) unsafe fn block_halves<const BYTES: usize, const PER: usize>(
    p: *const u8,
    groups: usize,
) -> [float32x4_t; 2] {
    // SAFETY: the chunk at `p` has `groups` groups by the contract.
    unsafe {
        let mut bits = [0u16; 8];
        for (g, bits) in bits.iter_mut().enumerate() {
            // past the last group its half is repeated, since the loop requires finite values
            *bits = u16_at(p.add(g.min(groups - 1) / PER * BYTES));
        }
        [load_halves(bits.as_ptr()), load_halves(bits.as_ptr().add(4))]
    }
}

#[inline(always)]
pub(crate) fn times<const N: usize>(mut all: [float32x4_t; N], by: f32) -> [float32x4_t; N] {
    for v in &mut all {
        // SAFETY: every aarch64 has NEON.
        *v = unsafe { vmulq_n_f32(*v, by) };
    }
    all
}

/// Eight times one value.
#[inline(always)]
pub(crate) fn all(value: f32) -> [float32x4_t; 2] {
    // SAFETY: every aarch64 has NEON.
    [unsafe { vdupq_n_f32(value) }; 2]
}

/// One scale and one offset per group of 32.
#[inline(always)]
pub(crate) fn whole(scales: [float32x4_t; 2], offsets: [float32x4_t; 2]) -> Scales {
    let [none, _] = all(0.0);
    Scales { scales: [scales[0], scales[1], none, none], offsets: [offsets[0], offsets[1], none, none] }
}

/// One scale per group of 16, and that scale times `offset` as its offset.
#[inline(always)]
fn halves(scales: [float32x4_t; 4], offset: f32) -> Scales {
    Scales { scales, offsets: times(scales, offset) }
}

/// Sixteen unsigned bytes as floats times a factor.
#[inline(always)]
fn unsigned(v: uint8x16_t, by: f32) -> [float32x4_t; 4] {
    // SAFETY: every aarch64 has NEON.
    unsafe {
        let (low, high) = (vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v));
        let (v0, v1) = (vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low));
        let (v2, v3) = (vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high));
        times([vcvtq_f32_u32(v0), vcvtq_f32_u32(v1), vcvtq_f32_u32(v2), vcvtq_f32_u32(v3)], by)
    }
}

/// Sixteen signed bytes as floats times a factor.
#[inline(always)]
fn signed(v: uint8x16_t, by: f32) -> [float32x4_t; 4] {
    // SAFETY: every aarch64 has NEON.
    unsafe {
        let v = vreinterpretq_s8_u8(v);
        let (low, high) = (vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v));
        let (v0, v1) = (vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low));
        let (v2, v3) = (vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high));
        times([vcvtq_f32_s32(v0), vcvtq_f32_s32(v1), vcvtq_f32_s32(v2), vcvtq_f32_s32(v3)], by)
    }
}

/// The 6-bit scales and mins of Q4_K and Q5_K.
#[inline(always)]
unsafe fn k_scales(p: *const u8) -> Scales {
    // SAFETY: a whole block is readable at `p` by the contract.
    unsafe {
        let words = [u32_at(p.add(4)), u32_at(p.add(8)), u32_at(p.add(12))];
        let scales = [words[0] & 0x3F3F_3F3F, words[2] & 0x0F0F_0F0F | (words[0] >> 6 & 0x0303_0303) << 4];
        let mins = [words[1] & 0x3F3F_3F3F, words[2] >> 4 & 0x0F0F_0F0F | (words[1] >> 6 & 0x0303_0303) << 4];
        let both = vreinterpretq_u8_u32(vld1q_u32([scales[0], scales[1], mins[0], mins[1]].as_ptr()));
        let [s0, s1, m0, m1] = unsigned(both, 1.0);
        whole(times([s0, s1], half_at(p)), times([m0, m1], -half_at(p.add(2))))
    }
}

/// Whether a flag is in a list.
macro_rules! has {
    ($want:ident) => { false };
    (WIDE WIDE $($rest:ident)*) => { true };
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
            const WIDE: bool = has!(WIDE $($flag)*);
            const HALVES: bool = has!(HALVES $($flag)*);
            #[inline(always)]
            unsafe fn codes($block: *const u8, $i: usize) -> [uint8x16_t; 2] {
                // SAFETY: the caller's block is whole.
                unsafe { $codes }
            }
            #[inline(always)]
            unsafe fn scales($p: *const u8, $groups: usize, tail: &[u8]) -> Scales {
                let _ = tail;
                $(let $tail = tail;)?
                // SAFETY: the caller's chunk has `groups` groups.
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
        let d = block_halves::<18, 1>(p, groups);
        whole(d, times(d, -8.0))
    }
}

layout! {
    Q4_1: 20 / 32;
    codes |block, _i| nibbles(block.add(4));
    scales |p, groups| whole(block_halves::<20, 1>(p, groups), block_halves::<20, 1>(p.add(2), groups))
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
    let two = |v: &[f32; 8]| unsafe { [vld1q_f32(v.as_ptr()), vld1q_f32(v.as_ptr().add(4))] };
    whole(two(&d), two(&offsets))
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
    codes |block, _i| five_bit_codes(block.add(6), block.add(2));
    scales |p, groups| {
        let d = block_halves::<22, 1>(p, groups);
        whole(d, times(d, -16.0))
    }
}

layout! {
    Q5_1: 24 / 32;
    codes |block, _i| five_bit_codes(block.add(8), block.add(4));
    scales |p, groups| whole(block_halves::<24, 1>(p, groups), block_halves::<24, 1>(p.add(2), groups))
}

layout! {
    Q8_0: 34 / 32, WIDE;
    codes |block, _i| [vld1q_u8(block.add(2)), vld1q_u8(block.add(18))];
    scales |p, groups| whole(block_halves::<34, 1>(p, groups), all(0.0))
}

layout! {
    Q2K: 84 / 256, HALVES;
    codes |block, i| shifted(block.add(16 + 32 * (i / 4)), 2 * (i % 4), 3);
    scales |p, _groups| {
        let [low, high] = nibbles(p);
        Scales { scales: unsigned(low, half_at(p.add(80))), offsets: unsigned(high, -half_at(p.add(82))) }
    }
}

layout! {
    /// `q2 - (bit ? 0 : 4)`, as `q2 + 4 * bit` and an offset of -4.
    Q3K: 110 / 256, HALVES;
    codes |block, i| joined::<2>(shifted(block.add(32 + 32 * (i / 4)), 2 * (i % 4), 3), shifted(block, i, 1));
    scales |p, _groups| {
        let words = [u32_at(p.add(96)), u32_at(p.add(100)), u32_at(p.add(104))];
        let six = |i: usize| {
            let low = words[i % 2] >> (4 * (i / 2)) & 0x0F0F_0F0F;
            low | (words[2] >> (2 * i) & 0x0303_0303) << 4
        };
        let packed = vreinterpretq_u8_u32(vld1q_u32([six(0), six(1), six(2), six(3)].as_ptr()));
        let packed = vsubq_u8(packed, vdupq_n_u8(32));
        halves(signed(packed, half_at(p.add(108))), -4.0)
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
        joined::<4>(shifted(block.add(48 + 32 * (i / 2)), 4 * (i % 2), 0x0F), shifted(block.add(16), i, 1))
    };
    scales |p, _groups| k_scales(p)
}

layout! {
    Q6K: 210 / 256, HALVES;
    codes |block, i| {
        let (half, j) = (i / 4, i % 4);
        let low = shifted(block.add(64 * half + 32 * (j % 2)), 4 * (j / 2), 0x0F);
        joined::<4>(low, shifted(block.add(128 + 32 * half), 2 * j, 3))
    };
    scales |p, _groups| halves(signed(vld1q_u8(p.add(192)), half_at(p.add(208))), -32.0)
}

layout! {
    Iq4Nl: 18 / 32, WIDE;
    codes |block, _i| looked_up(&IQ4, nibbles(block.add(2)));
    scales |p, groups| whole(block_halves::<18, 1>(p, groups), all(0.0))
}

layout! {
    Iq4Xs: 136 / 256, WIDE;
    codes |block, i| looked_up(&IQ4, nibbles(block.add(8 + 16 * i)));
    scales |p, _groups| {
        let (d, high) = (half_at(p), u16_at(p.add(2)));
        let mut scales = [0.0f32; 8];
        for (g, s) in scales.iter_mut().enumerate() {
            let low = *p.add(4 + g / 2) >> (4 * (g % 2)) & 15;
            *s = d * ((i32::from(low) | i32::from(high >> (2 * g) & 3) << 4) - 32) as f32;
        }
        whole([vld1q_f32(scales.as_ptr()), vld1q_f32(scales.as_ptr().add(4))], all(0.0))
    }
}

layout! {
    Mxfp4: 17 / 32;
    codes |block, _i| looked_up(&E2M1, nibbles(block.add(1)));
    scales |p, groups| {
        let mut scales = [0.0f32; 8];
        for (g, s) in scales.iter_mut().enumerate().take(groups) {
            let e = u32::from(*p.add(17 * g));
            // below the smallest normal float the mantissa changes instead of the exponent
            *s = f32::from_bits(if e < 2 { 1 << (21 + e) } else { (e - 1) << 23 });
        }
        whole([vld1q_f32(scales.as_ptr()), vld1q_f32(scales.as_ptr().add(4))], all(0.0))
    }
}

layout! {
    Nvfp4: 36 / 64, HALVES;
    codes |block, i| looked_up(&E2M1, nibbles_of_eight(block.add(4 + 16 * i)));
    scales |p, groups| {
        let mut halves = [0u16; 16];
        for (i, half) in halves.iter_mut().enumerate().take(2 * groups) {
            let bits = *p.add(36 * (i / 4) + i % 4);
            // moved to the exponent and mantissa of a half: 2^-8 of the value; no number is zero
            *half = if bits == 0x7F { 0 } else { u16::from(bits & 0x7F) << 7 };
        }
        let four = |i: usize| load_halves(halves.as_ptr().add(4 * i));
        let scales = times([four(0), four(1), four(2), four(3)], 128.0);
        Scales { scales, offsets: [vdupq_n_f32(0.0); 4] }
    }
}
