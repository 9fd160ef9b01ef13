//! Q1_0: 128 signs under one scale.

use crate::bits::{bytes, f16_at, put_f16, sized, spread_bits, take_from_each};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// `w = d` if the bit is set, otherwise `-d`; weight `j` is bit `j % 8` of byte `j / 8`.
/// Encodes as ggml does: `d` is the mean magnitude.
pub static Q1_0: Quant = Quant {
    name: "Q1_0",
    gguf_id: Some(41),
    dialect: Dialect::Ggml,
    block_len: 128,
    fields: &[Field::new("d", FieldType::F16, 1), Field::new("qs", FieldType::U8, 16)],
    tail: 0,
    codec: Codec::Codes(Codes {
        least: -1,
        most: 1,
        step: 2,
        activation_bits: 14,
        ..Codes::new(128, unpack)
    }),
    encode: Some(Encode::Plain(encode)),
};

fn unpack(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let codes: &mut [i8; 128] = sized(out.codes);
    let nibbles = bytes::<16>(block, 2).map(|byte| [byte & 15, byte >> 4]);
    for (codes, &nibble) in codes.as_chunks_mut().0.iter_mut().zip(nibbles.as_flattened()) {
        let signs = take_from_each(spread_bits(nibble) << 1, 1); // 2 * bit - 1
        *codes = signs.to_le_bytes().map(|code| code as i8);
    }
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = NO_OFFSET;
}

fn encode(weights: &[f32], block: &mut [u8]) {
    // in order: the order of a float sum is part of the result
    let sum = weights.iter().fold(0.0, |sum, w| sum + w.abs());
    put_f16(block, 0, sum / 128.0);
    for (byte, weights) in block[2..].iter_mut().zip(weights.chunks_exact(8)) {
        *byte = weights.iter().enumerate().fold(0, |byte, (j, &w)| byte | u8::from(w >= 0.0) << j);
    }
}
