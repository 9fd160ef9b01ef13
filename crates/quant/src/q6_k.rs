//! Q6_K: 256 six-bit weights in 16 groups, each with a signed byte for a scale.

use crate::bits::{bytes, f16_at, put_f16, sized};
use crate::rounding::{Symmetric, round_to};
use crate::{Codec, Codes, Dialect, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// `w = d * scale * (q - 32)`; in each half of 128 weights `q` has its low four bits in 64 nibbles of `ql`
/// and its high two in four planes of `qh`. Encodes by plain rounding, not by ggml's search.
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
    encode: Some(encode),
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

fn encode(weights: &[f32], block: &mut [u8]) {
    block.fill(0);
    let fit = Symmetric::<16>::fit(weights, -32.0, 127, |x| round_to(x, -32, 31));
    for (j, code) in fit.codes.into_iter().enumerate() {
        let (half, plane, l, q) = (j / 128, j / 32 % 4, j % 32, (code + 32) as u8);
        block[64 * half + 32 * (plane % 2) + l] |= (q & 15) << (4 * (plane / 2));
        block[128 + 32 * half + l] |= (q >> 4) << (2 * plane);
    }
    for (byte, scale) in block[192..208].iter_mut().zip(fit.scales) {
        *byte = scale as u8;
    }
    put_f16(block, 208, fit.d);
}
