//! IQ4_NL and IQ4_XS: four-bit indices into a table whose steps grow away from zero.

use crate::bits::{bytes, f16_at, pack_nibbles, put_f16, sized};
use crate::encoding::importance::squares;
use crate::encoding::rounding::{farthest, inverse};
use crate::encoding::search::{Block, Lanes, farthest_of_groups, lanes, nearest_even};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, Importance, NO_OFFSET, Quant, Unpacked};

/// `w = d * TABLE[nibble]`, nibbles as in Q4_0. Encodes as ggml does.
pub static IQ4_NL: Quant = Quant {
    name: "IQ4_NL",
    gguf_id: Some(20),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[Field::new("d", FieldType::F16, 1), Field::new("qs", FieldType::U8, 16)],
    tail: 0,
    codec: Codec::Codes(Codes { least: -127, most: 113, ..Codes::new(32, unpack_iq4_nl) }),
    encode: Some(Encode::Searched(encode_iq4_nl)),
};

/// Eight sub-blocks of 32 [`IQ4_NL`] weights, each with a six-bit scale: the low four bits in `scales_l`, the
/// high two in `scales_h`, 32 subtracted. Encodes as ggml does.
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
    encode: Some(Encode::Searched(encode_iq4_xs)),
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

/// The scale of each group of 32: of fifteen that are tried, the one with the smallest weighted square error.
fn scales_of_groups<const G: usize>(weights: &[f32], importance: Option<&Importance<'_>>) -> Lanes<G> {
    let x: Block<32, G> = lanes(weights);
    let by = match importance {
        Some(importance) => lanes(&importance.by(weights, squares(weights) * (2.0 / weights.len() as f32))),
        None => x.map(|x| x.map(|x| x * x)),
    };
    let far = farthest_of_groups(&x);
    let first = f32::from(TABLE[0]);
    let (mut scale, mut best) = ([0.0; G], [0.0; G]);
    let around = far.map(|far| 1.0 / (-far / first)); // the farthest weight has the table's other sign
    let tries = (-7i8..=7).map(|step| far.map(|far| (f32::from(step) + first) / far));
    for (step, inverse) in [around].into_iter().chain(tries).enumerate() {
        let (mut sum_qx, mut sum_q2) = ([0.0f32; G], [0.0f32; G]);
        for (x, by) in x.iter().zip(&by) {
            for g in 0..G {
                let q = f32::from(TABLE[nearest_index(inverse[g] * x[g])]);
                sum_qx[g] += by[g] * q * x[g];
                sum_q2[g] += by[g] * q * q;
            }
        }
        for g in 0..G {
            let better = sum_q2[g] > 0.0 && sum_qx[g] * sum_qx[g] > best[g] * sum_q2[g];
            if step == 0 || better {
                scale[g] = if sum_q2[g] > 0.0 { sum_qx[g] / sum_q2[g] } else { 0.0 };
                best[g] = scale[g] * sum_qx[g];
            }
        }
    }
    std::array::from_fn(|g| if far[g] == 0.0 { 0.0 } else { scale[g] })
}

fn pack_group(weights: &[f32], inverse: f32, qs: &mut [u8]) {
    let codes: [u8; 32] = std::array::from_fn(|i| nearest_index(inverse * weights[i]) as u8);
    pack_nibbles(&codes, qs);
}

fn encode_iq4_nl(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let [d] = scales_of_groups(weights, importance);
    put_f16(block, 0, d);
    pack_group(weights, inverse(d), &mut block[2..]);
}

fn encode_iq4_xs(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let wanted: Lanes<8> = scales_of_groups(weights, importance);
    let d = -farthest(&wanted) / 32.0;
    let (mut high, mut low) = (0u16, 0u32);
    for (s, weights) in weights.chunks_exact(32).enumerate() {
        let scale = nearest_even(inverse(d) * wanted[s]).clamp(-32.0, 31.0);
        pack_group(weights, inverse(d * scale), &mut block[8 + 16 * s..][..16]);
        let bits = (scale + 32.0) as u8;
        low |= u32::from(bits & 15) << (4 * s);
        high |= u16::from(bits >> 4) << (2 * s);
    }
    put_f16(block, 0, d);
    block[2..4].copy_from_slice(&high.to_le_bytes());
    block[4..8].copy_from_slice(&low.to_le_bytes());
}

/// The index of the nearest value of the table, the upper one of two that are equally near.
#[inline(always)]
fn nearest_index(x: f32) -> usize {
    let mut index = 0;
    for pair in TABLE.windows(2) {
        let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
        index += usize::from(x - low >= high - x);
    }
    index
}
