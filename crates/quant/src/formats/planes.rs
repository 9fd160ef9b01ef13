//! Two-bit codes in planes: a byte holds weights that are 32 apart.

use crate::bits::{bytes, f16_at, pack_planes, planes, put_f16, sized};
use crate::encoding::rounding::{farthest, inverse, nearest};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// `w = d * (code - 1)`, code 3 being `+2d`; two halves of 128 weights, the first plane in the lowest bits.
/// Encodes as ggml does.
pub static TQ2_0: Quant = Quant {
    name: "TQ2_0",
    gguf_id: Some(35),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[Field::new("qs", FieldType::U8, 64), Field::new("d", FieldType::F16, 1)],
    tail: 0,
    codec: Codec::Codes(Codes { least: -1, most: 2, ..Codes::new(256, unpack_tq2_0) }),
    encode: Some(Encode::Plain(encode_tq2_0)),
};

/// Microsoft's ternary tensor in its x86 layout: the first plane in the highest bits, and one f32 scale for
/// the whole tensor at the start of the 32-byte tail.
pub static I2_S: Quant = Quant {
    name: "I2_S",
    gguf_id: Some(36),
    dialect: Dialect::Microsoft,
    block_len: 128,
    fields: &[Field::new("qs", FieldType::U8, 32)],
    tail: 32,
    codec: Codec::Codes(Codes { least: -1, most: 2, ..Codes::new(128, unpack_i2_s) }),
    encode: Some(Encode::Shared(encode_i2_s)),
};

fn unpack_tq2_0(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let (first, second) = out.codes.split_at_mut(128);
    planes(bytes(block, 0), sized(first), 1);
    planes(bytes(block, 32), sized(second), 1);
    out.scales[0] = f16_at(block, 64);
    out.offsets[0] = NO_OFFSET;
}

fn encode_tq2_0(weights: &[f32], block: &mut [u8]) {
    let d = farthest(weights).abs();
    let id = inverse(d);
    let mut codes = [0; 256];
    for (code, &w) in codes.iter_mut().zip(weights) {
        *code = nearest(w * id).wrapping_add(1) as u8;
    }
    for (codes, qs) in codes.chunks_exact(128).zip(block.chunks_exact_mut(32)) {
        pack_planes(codes, qs);
    }
    put_f16(block, 64, d);
}

fn unpack_i2_s(block: &[u8], tail: &[u8], out: Unpacked<'_>) {
    let mut rest: [u8; 32] = *bytes(block, 0);
    for plane in out.codes.chunks_exact_mut(32) {
        for (code, rest) in plane.iter_mut().zip(&mut rest) {
            *code = (*rest >> 6) as i8 - 1;
            *rest <<= 2;
        }
    }
    out.scales[0] = f32::from_le_bytes(*bytes(tail, 0));
    out.offsets[0] = NO_OFFSET;
}

fn encode_i2_s(weights: &[f32], scale: f32, block: &mut [u8]) {
    let id = inverse(scale);
    block.fill(0);
    for plane in weights.chunks_exact(32) {
        for (byte, &w) in block.iter_mut().zip(plane) {
            *byte = *byte << 2 | nearest(w * id).wrapping_add(1) as u8 & 3;
        }
    }
}
