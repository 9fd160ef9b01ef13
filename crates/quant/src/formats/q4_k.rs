//! Q4_K and Q5_K: 256 weights in 8 groups, each with a six-bit scale and a six-bit minimum.

use crate::bits::{bytes, f16_at, nibbles, pack_nibbles, put_f16, sized};
use crate::encoding::fit::{AffineBlock, AffineRules};
use crate::encoding::search::Steps;
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, Importance, Quant, Unpacked};

/// `w = d * scale * nibble - dmin * min`; of each 32 bytes the low nibbles are one group, the high ones the
/// next. Encodes as ggml does.
pub static Q4_K: Quant = Quant {
    name: "Q4_K",
    gguf_id: Some(12),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[
        Field::new("d", FieldType::F16, 1),
        Field::new("dmin", FieldType::F16, 1),
        Field::new("scales", FieldType::U8, 12),
        Field::new("qs", FieldType::U8, 128),
    ],
    tail: 0,
    codec: Codec::Codes(Codes {
        least: 0,
        most: 15,
        offsets: true,
        integer_scales: true,
        activation_bits: 12,
        ..Codes::new(32, unpack_q4_k)
    }),
    encode: Some(Encode::Searched(encode_q4_k)),
};

/// [`Q4_K`] with a fifth bit: that of weight `l` in group `g` is bit `g` of `qh[l]`.
/// Encodes as ggml does.
pub static Q5_K: Quant = Quant {
    name: "Q5_K",
    gguf_id: Some(13),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[
        Field::new("d", FieldType::F16, 1),
        Field::new("dmin", FieldType::F16, 1),
        Field::new("scales", FieldType::U8, 12),
        Field::new("qh", FieldType::U8, 32),
        Field::new("qs", FieldType::U8, 128),
    ],
    tail: 0,
    codec: Codec::Codes(Codes {
        least: 0,
        most: 31,
        offsets: true,
        integer_scales: true,
        ..Codes::new(32, unpack_q5_k)
    }),
    encode: Some(Encode::Searched(encode_q5_k)),
};

fn unpack_q4_k(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    for (p, codes) in out.codes.chunks_exact_mut(64).enumerate() {
        nibbles(bytes::<32>(block, 16 + 32 * p), codes, 0);
    }
    unpack_scales(block, sized(out.scales), sized(out.offsets));
}

fn unpack_q5_k(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let mut qh: [u8; 32] = *bytes(block, 16);
    for (p, codes) in out.codes.chunks_exact_mut(64).enumerate() {
        nibbles(bytes::<32>(block, 48 + 32 * p), codes, 0);
    }
    for codes in out.codes.chunks_exact_mut(32) {
        for (code, high) in codes.iter_mut().zip(&mut qh) {
            *code |= ((*high & 1) << 4) as i8;
            *high >>= 1;
        }
    }
    unpack_scales(block, sized(out.scales), sized(out.offsets));
}

/// The halves and the twelve bytes of scales that both formats begin with. The first four scales and minima
/// are the low six bits of bytes 0 to 3 and 4 to 7; the last four are nibbles of bytes 8 to 11 below those
/// bytes' top bits.
#[inline(always)]
fn unpack_scales(block: &[u8], scales: &mut [f32; 8], offsets: &mut [f32; 8]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let packed: &[u8; 12] = bytes(block, 4);
    for g in 0..4 {
        let (scale, min, both) = (packed[g], packed[g + 4], packed[g + 8]);
        scales[g] = d * f32::from(scale & 63);
        offsets[g] = -(dmin * f32::from(min & 63));
        scales[g + 4] = d * f32::from(both & 15 | scale >> 6 << 4);
        offsets[g + 4] = -(dmin * f32::from(both >> 4 | min >> 6 << 4));
    }
}

fn pack_scales(fit: &AffineBlock<8>, block: &mut [u8]) {
    put_f16(block, 0, fit.d);
    put_f16(block, 2, fit.dmin);
    let packed = &mut block[4..16];
    for g in 0..4 {
        let (scale, min) = (fit.scales[g + 4], fit.mins[g + 4]);
        packed[g] = fit.scales[g] | scale >> 4 << 6;
        packed[g + 4] = fit.mins[g] | min >> 4 << 6;
        packed[g + 8] = scale & 15 | min << 4;
    }
}

const Q4_K_RULES: AffineRules = AffineRules {
    code_most: 15.0,
    scale_most: 63.0,
    steps: Steps { first: -1.0, each: 0.1, last: 20, magnitudes: false },
    with_mean: true,
    squares: 2.0,
};

const Q5_K_RULES: AffineRules = AffineRules {
    code_most: 31.0,
    steps: Steps { first: -0.5, each: 0.1, last: 15, magnitudes: false },
    ..Q4_K_RULES
};

fn encode_q4_k(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let fit = AffineBlock::fit::<32>(weights, importance, &Q4_K_RULES);
    pack_scales(&fit, block);
    for (codes, qs) in fit.codes.chunks_exact(64).zip(block[16..].chunks_exact_mut(32)) {
        pack_nibbles(codes, qs);
    }
}

fn encode_q5_k(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let fit = AffineBlock::fit::<32>(weights, importance, &Q5_K_RULES);
    pack_scales(&fit, block);
    for (l, high) in block[16..48].iter_mut().enumerate() {
        *high = (0..8).fold(0, |high, g| high | (fit.codes[32 * g + l] >> 4) << g);
    }
    for (codes, qs) in fit.codes.chunks_exact(64).zip(block[48..].chunks_exact_mut(32)) {
        pack_nibbles(codes, qs);
    }
}
