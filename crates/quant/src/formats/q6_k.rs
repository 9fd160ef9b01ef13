//! Q6_K: 256 six-bit weights in 16 groups, each with a signed byte for a scale.

use crate::bits::{bytes, f16_at, put_f16, sized, through_f16};
use crate::encoding::fit::round_again;
use crate::encoding::rounding::farthest;
use crate::encoding::search::{self, Block, ZERO, in_order, lanes, nearest_even};
use crate::{
    Codec, Codes, Dialect, Encode, Field, FieldType, Importance, MAX_BLOCK, NO_OFFSET, Quant, Unpacked,
};

/// `w = d * scale * (q - 32)`; in each half of 128 weights `q` has its low four bits in 64 nibbles of `ql`
/// and its high two in four planes of `qh`. Encodes as ggml does.
pub static Q6_K: Quant = Quant {
    name: "Q6_K",
    gguf_id: Some(14),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[
        Field::new("ql", FieldType::U8, 128),
        Field::new("qh", FieldType::U8, 64),
        Field::new("scales", FieldType::I8, 16),
        Field::new("d", FieldType::F16, 1),
    ],
    tail: 0,
    codec: Codec::Codes(Codes { least: -32, most: 31, integer_scales: true, ..Codes::new(16, unpack) }),
    encode: Some(Encode::Searched(encode)),
};

fn unpack(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    for (half, codes) in out.codes.chunks_exact_mut(128).enumerate() {
        let mut low: [u8; 64] = *bytes(block, 64 * half);
        let mut high: [u8; 32] = *bytes(block, 128 + 32 * half);
        for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
            let low = &mut low[32 * (plane % 2)..][..32];
            for ((code, low), high) in codes.iter_mut().zip(low).zip(&mut high) {
                *code = (*low & 15 | (*high & 3) << 4) as i8 - 32;
                *low >>= 4;
                *high >>= 2;
            }
        }
    }
    let d = f16_at(block, 208);
    let scales: &mut [f32; 16] = sized(out.scales);
    *scales = bytes::<16>(block, 192).map(|scale| d * f32::from(scale as i8));
    out.offsets.fill(NO_OFFSET);
}

fn encode(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    block.fill(0);
    let x: Block<16, 16> = lanes(weights);
    let by = match importance {
        Some(importance) => lanes(importance.columns),
        None => x.map(|x| x.map(|x| x * x)),
    };
    let groups = search::symmetric(&x, &by, 32.0);
    let far = farthest(&groups.scale);
    if far.abs() < ZERO {
        return;
    }
    let inverse = -128.0 / far;
    let d = 1.0 / inverse;
    let scales = groups.scale.map(|scale| nearest_even(inverse * scale).min(127.0) as i8);
    let mut codes = [0; MAX_BLOCK];
    in_order(&groups.codes, &mut codes);
    let rounded = through_f16(d);
    round_again::<16>(weights, scales.iter().map(|&s| rounded * f32::from(s)), 32.0, &mut codes);
    for (j, q) in codes.into_iter().enumerate() {
        let (half, plane, l) = (j / 128, j / 32 % 4, j % 32);
        block[64 * half + 32 * (plane % 2) + l] |= (q & 15) << (4 * (plane / 2));
        block[128 + 32 * half + l] |= (q >> 4) << (2 * plane);
    }
    for (byte, scale) in block[192..208].iter_mut().zip(scales) {
        *byte = scale as u8;
    }
    put_f16(block, 208, d);
}
