//! A block format that is not in `tern_quant::ALL`: a backend must run it from its [`Quant`] value alone.

use tern_quant::{Codec, Codes, Dialect, Encode, Field, FieldType, Quant, Unpacked};

/// Scales and offsets are multiples of this, so that weights survive a layout that keeps both as halves.
const UNIT: f32 = 1.0 / 1024.0;
const GROUP: usize = 16;

/// 64 weights of three bits in groups of 16, each with a scale and an offset: `w = (s * code + m) / 1024`.
pub static UNLISTED: Quant = Quant {
    name: "UNLISTED",
    gguf_id: None,
    dialect: Dialect::Ggml,
    block_len: 64,
    fields: &[
        Field::new("s", FieldType::U8, 4),
        Field::new("m", FieldType::I8, 4),
        Field::new("qs", FieldType::U8, 24),
    ],
    tail: 0,
    codec: Codec::Codes(Codes { least: -3, most: 4, offsets: true, ..Codes::new(GROUP, unpack) }),
    encode: Some(Encode::Plain(encode)),
};

/// Eight codes lie side by side in three bytes, lowest bits first.
fn unpack(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    for (codes, bytes) in out.codes.chunks_exact_mut(8).zip(block[8..].chunks_exact(3)) {
        let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = (bits >> (3 * i) & 7) as i8 - 3);
    }
    out.scales.iter_mut().zip(&block[..4]).for_each(|(scale, s)| *scale = f32::from(*s) * UNIT);
    out.offsets.iter_mut().zip(&block[4..8]).for_each(|(offset, m)| *offset = f32::from(*m as i8) * UNIT);
}

fn encode(weights: &[f32], block: &mut [u8]) {
    let mut all = [0u8; 64];
    for (g, (weights, codes)) in weights.chunks_exact(GROUP).zip(all.chunks_exact_mut(GROUP)).enumerate() {
        let least = weights.iter().fold(f32::INFINITY, |least, w| least.min(*w));
        let most = weights.iter().fold(f32::NEG_INFINITY, |most, w| most.max(*w));
        let s = ((most - least) / 7.0 / UNIT).ceil().clamp(1.0, 255.0);
        let m = (least / UNIT + 3.0 * s).round().clamp(-128.0, 127.0);
        (block[g], block[4 + g]) = (s as u8, m as i8 as u8);
        for (code, w) in codes.iter_mut().zip(weights) {
            *code = ((w / UNIT - m) / s + 3.0).round().clamp(0.0, 7.0) as u8;
        }
    }
    for (codes, bytes) in all.chunks_exact(8).zip(block[8..].chunks_exact_mut(3)) {
        let bits = codes.iter().rev().fold(0u32, |bits, code| bits << 3 | u32::from(*code));
        bytes.copy_from_slice(&bits.to_le_bytes()[..3]);
    }
}
