//! INT4_32 and INT4_128: four-bit codes with a scale and an integer zero point, as GPTQ, AWQ and
//! compressed-tensors have them.
//!
//! No GGUF file stores them: they hold the weights of folders without loss.

use crate::bits::{bytes, nibbles, pack_nibbles};
use crate::encoding::rounding::{extremes, inverse};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, Quant, Unpacked};

/// `w = d * (nibble - zero)` for 32 weights; byte `j` holds weights `j` (low) and `j + 16` (high).
pub static INT4_32: Quant = int4(
    "INT4_32",
    32,
    &[
        Field::new("d", FieldType::F32, 1),
        Field::new("zero", FieldType::U8, 1),
        Field::new("qs", FieldType::U8, 16),
    ],
);

/// The same for 128 weights: nibbles are those of four blocks of 32.
pub static INT4_128: Quant = int4(
    "INT4_128",
    128,
    &[
        Field::new("d", FieldType::F32, 1),
        Field::new("zero", FieldType::U8, 1),
        Field::new("qs", FieldType::U8, 64),
    ],
);

const fn int4(name: &'static str, block_len: usize, fields: &'static [Field]) -> Quant {
    let codes =
        Codes { least: 0, most: 15, offsets: true, activation_bits: 12, ..Codes::new(block_len, unpack) };
    Quant {
        name,
        gguf_id: None,
        dialect: Dialect::Ggml,
        block_len,
        fields,
        tail: 0,
        codec: Codec::Codes(codes),
        encode: Some(Encode::Plain(encode)),
    }
}

fn unpack(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let d = f32::from_le_bytes(*bytes(block, 0));
    for (codes, qs) in out.codes.as_chunks_mut::<32>().0.iter_mut().zip(block[5..].as_chunks::<16>().0) {
        nibbles(qs, codes, 0);
    }
    out.scales[0] = d;
    out.offsets[0] = -(d * f32::from(block[4]));
}

/// The range of the weights, and zero, in fifteen steps.
fn encode(weights: &[f32], block: &mut [u8]) {
    let (least, most) = extremes(weights);
    let d = (most.max(0.0) - least.min(0.0)) / 15.0;
    let zero = (-least.min(0.0) * inverse(d)).round().clamp(0.0, 15.0);
    block[..4].copy_from_slice(&d.to_le_bytes());
    block[4] = zero as u8;
    for (weights, qs) in weights.as_chunks::<32>().0.iter().zip(block[5..].as_chunks_mut::<16>().0) {
        let codes = weights.map(|w| (w * inverse(d) + zero).round().clamp(0.0, 15.0) as u8);
        pack_nibbles(&codes, qs);
    }
}
