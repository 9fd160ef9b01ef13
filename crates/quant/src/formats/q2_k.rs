//! Q2_K: 256 two-bit weights in 16 groups, each with a four-bit scale and a four-bit minimum.

use crate::bits::{bytes, f16_at, pack_planes, planes, put_f16, sized};
use crate::encoding::fit::{AffineBlock, AffineRules};
use crate::encoding::search::Steps;
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, Importance, Quant, Unpacked};

/// `w = d * scale * code - dmin * min`; a scale is the low nibble of a byte, its minimum the high one. Codes
/// are planes of 32 in two halves. Encodes as ggml does.
pub static Q2_K: Quant = Quant {
    name: "Q2_K",
    gguf_id: Some(10),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[
        Field::new("scales", FieldType::U8, 16),
        Field::new("qs", FieldType::U8, 64),
        Field::new("d", FieldType::F16, 1),
        Field::new("dmin", FieldType::F16, 1),
    ],
    tail: 0,
    codec: Codec::Codes(Codes {
        least: 0,
        most: 3,
        offsets: true,
        integer_scales: true,
        ..Codes::new(16, unpack)
    }),
    encode: Some(Encode::Searched(encode)),
};

fn unpack(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let (first, second) = out.codes.split_at_mut(128);
    planes(bytes(block, 16), sized(first), 0);
    planes(bytes(block, 48), sized(second), 0);
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    let packed: &[u8; 16] = bytes(block, 0);
    let scales: &mut [f32; 16] = sized(out.scales);
    let offsets: &mut [f32; 16] = sized(out.offsets);
    *scales = packed.map(|byte| d * f32::from(byte & 15));
    *offsets = packed.map(|byte| -(dmin * f32::from(byte >> 4)));
}

const RULES: AffineRules = AffineRules {
    code_most: 3.0,
    scale_most: 15.0,
    steps: Steps { first: -0.5, each: 0.1, last: 15, magnitudes: true },
    with_mean: false,
    squares: 1.0,
};

fn encode(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    let fit = AffineBlock::<16>::fit::<16>(weights, importance, &RULES);
    for (g, byte) in block[..16].iter_mut().enumerate() {
        *byte = fit.scales[g] | fit.mins[g] << 4;
    }
    for (codes, qs) in fit.codes.chunks_exact(128).zip(block[16..80].chunks_exact_mut(32)) {
        pack_planes(codes, qs);
    }
    put_f16(block, 80, fit.d);
    put_f16(block, 82, fit.dmin);
}
