//! MXFP4 and NVFP4: four-bit floats under a power of two, or under an eight-bit float.

use crate::bits::{bytes, sized};
use crate::encoding::rounding::farthest;
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// `w = 2^(e - 128) * code`; byte `j` holds weights `j` (low nibble) and `j + 16` (high nibble). Encodes as
/// ggml does, except for magnitudes below 2^-125 or infinite, for which ggml's exponent wraps around.
pub static MXFP4: Quant = Quant {
    name: "MXFP4",
    gguf_id: Some(39),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[Field::new("e", FieldType::U8, 1), Field::new("qs", FieldType::U8, 16)],
    tail: 0,
    codec: Codec::Codes(Codes { least: -12, most: 12, ..Codes::new(32, unpack_mxfp4) }),
    encode: Some(Encode::Plain(encode_mxfp4)),
};

/// `w = d * code / 2` in groups of 16, `d` an unsigned 4-bit-exponent float; byte `j` of a group holds
/// weights `j` and `j + 8`. The tensor's scale is a separate tensor. Encodes by plain rounding.
pub static NVFP4: Quant = Quant {
    name: "NVFP4",
    gguf_id: Some(40),
    dialect: Dialect::Ggml,
    block_len: 64,
    fields: &[Field::new("d", FieldType::U8, 4), Field::new("qs", FieldType::U8, 32)],
    tail: 0,
    codec: Codec::Codes(Codes { least: -12, most: 12, ..Codes::new(16, unpack_nvfp4) }),
    encode: Some(Encode::Plain(encode_nvfp4)),
};

/// The four-bit floats, doubled so that they are whole: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn unpack_mxfp4(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let codes: &mut [i8; 32] = sized(out.codes);
    unpack_codes::<16>(bytes(block, 1), codes);
    out.scales[0] = half_of_e8m0(block[0]);
    out.offsets[0] = NO_OFFSET;
}

fn unpack_nvfp4(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let scales: &mut [f32; 4] = sized(out.scales);
    for (s, codes) in out.codes.chunks_exact_mut(16).enumerate() {
        unpack_codes::<8>(bytes(block, 4 + 8 * s), codes);
    }
    *scales = bytes::<4>(block, 0).map(half_of_ue4m3);
    out.offsets.fill(NO_OFFSET);
}

#[inline(always)]
fn unpack_codes<const N: usize>(qs: &[u8; N], codes: &mut [i8]) {
    let (low, high) = codes.split_at_mut(N);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
        *low = doubled_e2m1(byte & 15);
        *high = doubled_e2m1(byte >> 4);
    }
}

/// [`E2M1`] without the table, so that it vectorises everywhere: the steps double after 4 and again after 6.
#[inline(always)]
fn doubled_e2m1(nibble: u8) -> i8 {
    let index = nibble & 7;
    let magnitude = (index + index.saturating_sub(4) + 2 * index.saturating_sub(6)) as i8;
    let sign = -((nibble >> 3) as i8); // 0, or all ones
    (magnitude ^ sign) - sign
}

/// `2^(e - 128)`: half the power of two, since the codes are doubled.
fn half_of_e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e, // below the smallest normal float
        _ => u32::from(e - 1) << 23,
    })
}

/// Half of an unsigned float of 4 exponent bits (bias 7) and 3 mantissa bits; its NaN is read as 0.
#[inline(always)]
fn half_of_ue4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa as f32 / 1024.0,
        _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
    }
}

fn encode_mxfp4(weights: &[f32], block: &mut [u8]) {
    let far = farthest(weights).abs();
    let exponent = if far > 0.0 { far.log2().floor() - 2.0 + 127.0 } else { 0.0 };
    block[0] = exponent.clamp(0.0, 254.0) as u8;
    encode_codes(weights, half_of_e8m0(block[0]), &mut block[1..]);
}

fn encode_nvfp4(weights: &[f32], block: &mut [u8]) {
    let (scales, qs) = block.split_at_mut(4);
    for ((scale, qs), weights) in scales.iter_mut().zip(qs.chunks_exact_mut(8)).zip(weights.chunks_exact(16))
    {
        *scale = to_ue4m3(farthest(weights).abs() / 6.0);
        encode_codes(weights, half_of_ue4m3(*scale), qs);
    }
}

/// The nearest UE4M3 below its NaN.
fn to_ue4m3(x: f32) -> u8 {
    let x = x.min(448.0);
    if x < 1.0 / 64.0 {
        return (x * 512.0 + 0.5) as u8; // 8 is the smallest normal: the carry is right
    }
    let rounded = (x.to_bits() + (1 << 19)) >> 20;
    (rounded - (120 << 3)).min(0x7e) as u8
}

fn encode_codes(weights: &[f32], scale: f32, qs: &mut [u8]) {
    let (low, high) = weights.split_at(qs.len());
    for ((byte, &low), &high) in qs.iter_mut().zip(low).zip(high) {
        *byte = nearest_e2m1(low, scale) | nearest_e2m1(high, scale) << 4;
    }
}

/// The first of the nearest codes.
fn nearest_e2m1(w: f32, scale: f32) -> u8 {
    let error = |code: usize| (f32::from(E2M1[code]) * scale - w).abs();
    (1..16).fold(0, |best, code| if error(code) < error(best) { code } else { best }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_are_the_table() {
        assert_eq!(std::array::from_fn(|nibble| doubled_e2m1(nibble as u8)), E2M1);
    }

    #[test]
    fn exponents_are_powers_of_two() {
        for e in 0..=u8::MAX {
            let want = 2f64.powi(i32::from(e) - 128);
            assert_eq!(f64::from(half_of_e8m0(e)), want, "{e}");
        }
    }

    #[test]
    fn scales_round_to_themselves() {
        for bits in 0..0x7f {
            assert_eq!(to_ue4m3(2.0 * half_of_ue4m3(bits)), bits);
        }
        assert_eq!(to_ue4m3(f32::INFINITY), 0x7e);
    }
}
