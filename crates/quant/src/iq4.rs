//! IQ4_NL and IQ4_XS: four-bit indices into a table whose steps grow away from zero.

use crate::bits::{bytes, f16_at, pack_nibbles, put_f16, sized, through_f16};
use crate::rounding::{Symmetric, farthest, inverse};
use crate::{Codec, Codes, Dialect, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// `w = d * TABLE[nibble]`, nibbles as in Q4_0. Encodes by plain rounding, not by ggml's search.
pub static IQ4_NL: Quant = Quant {
    name: "IQ4_NL",
    gguf_id: Some(20),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[Field::new("d", FieldType::F16, 1), Field::new("qs", FieldType::U8, 16)],
    tail: 0,
    codec: Codec::Codes(Codes { least: -127, most: 113, ..Codes::new(32, unpack_iq4_nl) }),
    encode: Some(encode_iq4_nl),
};

/// Eight sub-blocks of 32 [`IQ4_NL`] weights, each with a six-bit scale: the low four bits in `scales_l`, the
/// high two in `scales_h`, 32 subtracted. Encodes by plain rounding, not by ggml's search.
pub static IQ4_XS: Quant = Quant {
    name: "IQ4_XS",
    gguf_id: Some(23),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[
        Field::new("d", FieldType::F16, 1),
        Field::new("scales_h", FieldType::U16, 1),
        Field::new("scales_l", FieldType::U8, 4),
        Field::new("qs", FieldType::U8, 128),
    ],
    tail: 0,
    codec: Codec::Codes(Codes {
        least: -127,
        most: 113,
        integer_scales: true,
        ..Codes::new(32, unpack_iq4_xs)
    }),
    encode: Some(encode_iq4_xs),
};

const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn unpack_iq4_nl(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    unpack_codes(bytes(block, 2), sized(out.codes));
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = NO_OFFSET;
}

fn unpack_iq4_xs(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let d = f16_at(block, 0);
    let high = u16::from_le_bytes(*bytes(block, 2));
    let low = u32::from_le_bytes(*bytes(block, 4));
    let scales: &mut [f32; 8] = sized(out.scales);
    for (s, scale) in scales.iter_mut().enumerate() {
        let bits = (low >> (4 * s) & 15) as u8 | ((high >> (2 * s) & 3) << 4) as u8;
        *scale = d * f32::from(bits as i8 - 32);
    }
    for (s, codes) in out.codes.chunks_exact_mut(32).enumerate() {
        unpack_codes(bytes(block, 8 + 16 * s), sized(codes));
    }
    out.offsets.fill(NO_OFFSET);
}

#[inline(always)]
fn unpack_codes(qs: &[u8; 16], codes: &mut [i8; 32]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
        *low = TABLE[usize::from(byte & 15)];
        *high = TABLE[usize::from(byte >> 4)];
    }
}

fn encode_iq4_nl(weights: &[f32], block: &mut [u8]) {
    let d = through_f16(farthest(weights) / -127.0);
    let id = inverse(d);
    let mut codes = [0; 32];
    for (code, &w) in codes.iter_mut().zip(weights) {
        *code = nearest_index(w * id) as u8;
    }
    put_f16(block, 0, d);
    pack_nibbles(&codes, &mut block[2..]);
}

fn encode_iq4_xs(weights: &[f32], block: &mut [u8]) {
    let fit = Symmetric::<8>::fit(weights, -127.0, 31, nearest_index);
    let (mut high, mut low) = (0u16, 0u32);
    for (s, scale) in fit.scales.into_iter().enumerate() {
        let bits = (scale + 32) as u8;
        low |= u32::from(bits & 15) << (4 * s);
        high |= u16::from(bits >> 4) << (2 * s);
    }
    put_f16(block, 0, fit.d);
    block[2..4].copy_from_slice(&high.to_le_bytes());
    block[4..8].copy_from_slice(&low.to_le_bytes());
    for (codes, qs) in fit.codes.chunks_exact(32).zip(block[8..].chunks_exact_mut(16)) {
        let codes: [u8; 32] = std::array::from_fn(|j| codes[j] as u8);
        pack_nibbles(&codes, qs);
    }
}

fn nearest_index(x: f32) -> i8 {
    let error = |index: usize| (f32::from(TABLE[index]) - x).abs();
    (1..16).fold(0, |best, index| if error(index) < error(best) { index } else { best }) as i8
}
