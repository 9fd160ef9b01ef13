//! Plain floats: one weight per block, no scale.

use half::{bf16, f16};

use crate::bits::{bytes, f16_at};
use crate::{Codec, Dialect, Encode, Field, FieldType, Quant};

/// IEEE single.
pub static F32: Quant = float("F32", 0, &[Field::new("w", FieldType::F32, 1)], read_f32, write_f32);

/// IEEE half.
pub static F16: Quant = float("F16", 1, &[Field::new("w", FieldType::F16, 1)], read_f16, write_f16);

/// bfloat16: the upper half of an IEEE single.
pub static BF16: Quant = float("BF16", 30, &[Field::new("w", FieldType::BF16, 1)], read_bf16, write_bf16);

const fn float(
    name: &'static str,
    id: u32,
    fields: &'static [Field],
    read: fn(&[u8]) -> f32,
    write: fn(&[f32], &mut [u8]),
) -> Quant {
    Quant {
        name,
        gguf_id: Some(id),
        dialect: Dialect::Ggml,
        block_len: 1,
        fields,
        tail: 0,
        codec: Codec::Float(read),
        encode: Some(Encode::Plain(write)),
    }
}

fn read_f32(block: &[u8]) -> f32 {
    f32::from_le_bytes(*bytes(block, 0))
}

fn read_f16(block: &[u8]) -> f32 {
    f16_at(block, 0)
}

fn read_bf16(block: &[u8]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(*bytes(block, 0))) << 16)
}

fn write_f32(weights: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&weights[0].to_le_bytes());
}

fn write_f16(weights: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&f16::from_f32(weights[0]).to_le_bytes());
}

fn write_bf16(weights: &[f32], block: &mut [u8]) {
    block.copy_from_slice(&bf16::from_f32(weights[0]).to_le_bytes());
}
