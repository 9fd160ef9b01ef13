//! Q4_0 and Q4_1: 32 four-bit weights under one scale, without and with a minimum.

use crate::bits::{bytes, f16_at, nibbles, pack_nibbles, put_f16};
use crate::encoding::fit::{weighted_affine, weighted_symmetric};
use crate::encoding::rounding::{extremes, farthest, inverse, truncate};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, Importance, NO_OFFSET, Quant, Unpacked};

/// `w = d * (nibble - 8)`; byte `j` holds weights `j` (low) and `j + 16` (high). Encodes as ggml does.
pub static Q4_0: Quant = Quant {
    name: "Q4_0",
    gguf_id: Some(2),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[Field::new("d", FieldType::F16, 1), Field::new("qs", FieldType::U8, 16)],
    tail: 0,
    codec: Codec::Codes(Codes { least: -8, most: 7, activation_bits: 12, ..Codes::new(32, unpack_q4_0) }),
    encode: Some(Encode::Searched(encode_q4_0)),
};

/// `w = d * nibble + m`, nibbles as in [`Q4_0`]. Encodes as ggml does.
pub static Q4_1: Quant = Quant {
    name: "Q4_1",
    gguf_id: Some(3),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[
        Field::new("d", FieldType::F16, 1),
        Field::new("m", FieldType::F16, 1),
        Field::new("qs", FieldType::U8, 16),
    ],
    tail: 0,
    codec: Codec::Codes(Codes {
        least: 0,
        most: 15,
        offsets: true,
        activation_bits: 12,
        ..Codes::new(32, unpack_q4_1)
    }),
    encode: Some(Encode::Searched(encode_q4_1)),
};

fn unpack_q4_0(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    nibbles(bytes::<16>(block, 2), out.codes, 8);
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = NO_OFFSET;
}

fn unpack_q4_1(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    nibbles(bytes::<16>(block, 4), out.codes, 0);
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = f16_at(block, 2);
}

fn encode_q4_0(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let (d, codes) = match importance {
        Some(importance) => weighted_symmetric(weights, importance, 8.0),
        None => {
            let d = farthest(weights) / -8.0;
            let id = inverse(d);
            (d, std::array::from_fn(|i| (truncate(weights[i] * id + 8.5) as i8).min(15) as u8))
        }
    };
    put_f16(block, 0, d);
    pack_nibbles(&codes, &mut block[2..]);
}

fn encode_q4_1(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let (d, low, codes) = match importance {
        Some(importance) => weighted_affine(weights, importance, 15.0),
        None => {
            let (low, high) = extremes(weights);
            let d = (high - low) / 15.0;
            let id = inverse(d);
            (d, low, std::array::from_fn(|i| (truncate((weights[i] - low) * id + 0.5) as i8).min(15) as u8))
        }
    };
    put_f16(block, 0, d);
    put_f16(block, 2, low);
    pack_nibbles(&codes, &mut block[4..]);
}
