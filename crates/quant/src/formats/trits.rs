//! TQ1_0 and PTQ1_0: five ternary digits in a byte.
//!
//! A byte is a fixed-point fraction in base 3: five digits, the first the most significant, read as a number
//! below 243 and scaled to 256. Each multiplication by 3 moves the next digit out of the top of the byte.

use crate::bits::{bytes, f16_at, put_f16};
use crate::encoding::rounding::{farthest, inverse, nearest};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// `w = d * (digit - 1)`; 32 bytes of five digits, 16 of five, 4 of four, then the scale. Encodes as ggml
/// does.
pub static TQ1_0: Quant = Quant {
    name: "TQ1_0",
    gguf_id: Some(34),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[
        Field::new("qs", FieldType::U8, 48),
        Field::new("qh", FieldType::U8, 4),
        Field::new("d", FieldType::F16, 1),
    ],
    tail: 0,
    codec: Codec::Codes(Codes { least: -1, most: 1, ..Codes::new(256, unpack_tq1_0) }),
    encode: Some(Encode::Plain(encode_tq1_0)),
};

/// PrismML's [`TQ1_0`] for groups of 128: 16 bytes of five digits, 8 of five, 2 of four, then the scale.
pub static PTQ1_0: Quant = Quant {
    name: "PTQ1_0",
    gguf_id: Some(143),
    dialect: Dialect::Prism,
    block_len: 128,
    fields: &[
        Field::new("qs", FieldType::U8, 24),
        Field::new("qh", FieldType::U8, 2),
        Field::new("d", FieldType::F16, 1),
    ],
    tail: 0,
    codec: Codec::Codes(Codes { least: -1, most: 1, ..Codes::new(128, unpack_ptq1_0) }),
    encode: Some(Encode::Plain(encode_ptq1_0)),
};

fn unpack_tq1_0(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    unpack_stage::<32>(bytes(block, 0), &mut out.codes[..160]);
    unpack_stage::<16>(bytes(block, 32), &mut out.codes[160..240]);
    unpack_stage::<4>(bytes(block, 48), &mut out.codes[240..]);
    out.scales[0] = f16_at(block, 52);
    out.offsets[0] = NO_OFFSET;
}

fn unpack_ptq1_0(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    unpack_stage::<16>(bytes(block, 0), &mut out.codes[..80]);
    unpack_stage::<8>(bytes(block, 16), &mut out.codes[80..120]);
    unpack_stage::<2>(bytes(block, 24), &mut out.codes[120..]);
    out.scales[0] = f16_at(block, 26);
    out.offsets[0] = NO_OFFSET;
}

/// The first digits of all bytes, then the second digits, and so on.
#[inline(always)]
fn unpack_stage<const BYTES: usize>(packed: &[u8; BYTES], codes: &mut [i8]) {
    let mut rest = *packed;
    for codes in codes.chunks_exact_mut(BYTES) {
        for (code, rest) in codes.iter_mut().zip(&mut rest) {
            *code = ((u16::from(*rest) * 3) >> 8) as i8 - 1;
            *rest = rest.wrapping_mul(3);
        }
    }
}

fn encode_tq1_0(weights: &[f32], block: &mut [u8]) {
    let (d, digits) = digits::<256>(weights);
    pack_stage(&digits[..160], &mut block[..32]);
    pack_stage(&digits[160..240], &mut block[32..48]);
    pack_stage(&digits[240..], &mut block[48..52]);
    put_f16(block, 52, d);
}

fn encode_ptq1_0(weights: &[f32], block: &mut [u8]) {
    let (d, digits) = digits::<128>(weights);
    pack_stage(&digits[..80], &mut block[..16]);
    pack_stage(&digits[80..120], &mut block[16..24]);
    pack_stage(&digits[120..], &mut block[24..26]);
    put_f16(block, 26, d);
}

/// The scale, which is the largest magnitude, and one digit per weight.
fn digits<const N: usize>(weights: &[f32]) -> (f32, [u8; N]) {
    let d = farthest(weights).abs();
    let id = inverse(d);
    let mut digits = [0; N];
    for (digit, &w) in digits.iter_mut().zip(weights) {
        *digit = (nearest(w * id).clamp(-1, 1) + 1) as u8;
    }
    (d, digits)
}

fn pack_stage(digits: &[u8], packed: &mut [u8]) {
    let bytes = packed.len();
    for (m, byte) in packed.iter_mut().enumerate() {
        // a missing fifth digit counts as 0
        let digit = |n: usize| digits.get(n * bytes + m).map_or(0, |&digit| u32::from(digit));
        let number = (0..5).fold(0, |number, n| number * 3 + digit(n));
        *byte = (number * 256).div_ceil(243) as u8;
    }
}
