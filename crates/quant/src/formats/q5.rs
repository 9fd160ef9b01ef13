//! Q5_0 and Q5_1: 32 five-bit weights under one scale, without and with a minimum.

use crate::bits::{bytes, f16_at, pack_nibbles, put_f16, sized, spread_bits, take_from_each};
use crate::encoding::fit::{weighted_affine, weighted_symmetric};
use crate::encoding::rounding::{extremes, farthest, inverse, truncate};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, Importance, NO_OFFSET, Quant, Unpacked};

/// `w = d * (q - 16)`; nibbles as in Q4_0, the fifth bit of weight `j` is bit `j` of `qh`. Encodes as ggml
/// does.
pub static Q5_0: Quant = Quant {
    name: "Q5_0",
    gguf_id: Some(6),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[
        Field::new("d", FieldType::F16, 1),
        Field::new("qh", FieldType::U8, 4),
        Field::new("qs", FieldType::U8, 16),
    ],
    tail: 0,
    codec: Codec::Codes(Codes { least: -16, most: 15, ..Codes::new(32, unpack_q5_0) }),
    encode: Some(Encode::Searched(encode_q5_0)),
};

/// `w = d * q + m`, bits as in [`Q5_0`]. Encodes as ggml does.
pub static Q5_1: Quant = Quant {
    name: "Q5_1",
    gguf_id: Some(7),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[
        Field::new("d", FieldType::F16, 1),
        Field::new("m", FieldType::F16, 1),
        Field::new("qh", FieldType::U8, 4),
        Field::new("qs", FieldType::U8, 16),
    ],
    tail: 0,
    codec: Codec::Codes(Codes { least: 0, most: 31, offsets: true, ..Codes::new(32, unpack_q5_1) }),
    encode: Some(Encode::Searched(encode_q5_1)),
};

fn unpack_q5_0(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    unpack_codes(bytes(block, 2), bytes(block, 6), sized(out.codes), 16);
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = NO_OFFSET;
}

fn unpack_q5_1(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    unpack_codes(bytes(block, 4), bytes(block, 8), sized(out.codes), 0);
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = f16_at(block, 2);
}

/// Four codes at a time, one per byte of a word: whole words are stored and loaded, since a wider load would
/// wait for narrower stores.
#[inline(always)]
fn unpack_codes(qh: &[u8; 4], qs: &[u8; 16], codes: &mut [i8; 32], bias: u8) {
    let fifth = u32::from_le_bytes(*qh);
    let code = |nibbles: u32, at: usize| {
        let high = spread_bits((fifth >> at) as u8 & 15) << 4;
        take_from_each(nibbles & 0x0f0f_0f0f | high, bias).to_le_bytes().map(|code| code as i8)
    };
    let words = codes.as_chunks_mut().0;
    for (k, qs) in qs.as_chunks().0.iter().enumerate() {
        let qs = u32::from_le_bytes(*qs);
        words[k] = code(qs, 4 * k);
        words[k + 4] = code(qs >> 4, 4 * k + 16);
    }
}

fn encode_q5_0(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let (d, codes) = match importance {
        Some(importance) => weighted_symmetric(weights, importance, 16.0),
        None => {
            let d = farthest(weights) / -16.0;
            let id = inverse(d);
            (d, std::array::from_fn(|i| (truncate(weights[i] * id + 16.5) as i8).min(31) as u8))
        }
    };
    put_f16(block, 0, d);
    pack_codes(&codes, &mut block[2..]);
}

fn encode_q5_1(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let (d, low, codes) = match importance {
        Some(importance) => weighted_affine(weights, importance, 31.0),
        None => {
            let (low, high) = extremes(weights);
            let d = (high - low) / 31.0;
            let id = inverse(d);
            (d, low, std::array::from_fn(|i| truncate((weights[i] - low) * id + 0.5) as u8))
        }
    };
    put_f16(block, 0, d);
    put_f16(block, 2, low);
    pack_codes(&codes, &mut block[4..]);
}

fn pack_codes(codes: &[u8; 32], out: &mut [u8]) {
    let (qh, qs) = out.split_at_mut(4);
    let fifth = codes.iter().enumerate().fold(0, |bits, (j, code)| bits | u32::from(code >> 4 & 1) << j);
    qh.copy_from_slice(&fifth.to_le_bytes());
    pack_nibbles(&codes.map(|code| code & 15), qs);
}
