//! Q3_K: 256 three-bit weights in 16 groups, each with a six-bit scale.

use crate::bits::{bytes, f16_at, pack_planes, planes, put_f16, sized, through_f16};
use crate::encoding::fit::{round_again, sums};
use crate::encoding::importance::squares;
use crate::encoding::rounding::farthest;
use crate::encoding::search::{self, Block, in_order, lanes, nearest_even};
use crate::{
    Codec, Codes, Dialect, Encode, Field, FieldType, Importance, MAX_BLOCK, NO_OFFSET, Quant, Unpacked,
};

/// `w = d * (scale - 32) * code`, codes from -4 to 3: two low bits in planes of 32, the third of plane `p` in
/// half `h` at bit `4h + p` of `hmask`. Encodes as ggml does.
pub static Q3_K: Quant = Quant {
    name: "Q3_K",
    gguf_id: Some(11),
    dialect: Dialect::Ggml,
    block_len: 256,
    fields: &[
        Field::new("hmask", FieldType::U8, 32),
        Field::new("qs", FieldType::U8, 64),
        Field::new("scales", FieldType::U8, 12),
        Field::new("d", FieldType::F16, 1),
    ],
    tail: 0,
    codec: Codec::Codes(Codes { least: -4, most: 3, integer_scales: true, ..Codes::new(16, unpack) }),
    encode: Some(Encode::Searched(encode)),
};

fn unpack(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let mut hmask: [u8; 32] = *bytes(block, 0);
    let (first, second) = out.codes.split_at_mut(128);
    planes(bytes(block, 32), sized(first), 4);
    planes(bytes(block, 64), sized(second), 4);
    for plane in out.codes.chunks_exact_mut(32) {
        for (code, mask) in plane.iter_mut().zip(&mut hmask) {
            *code += ((*mask & 1) << 2) as i8;
            *mask >>= 1;
        }
    }
    let d = f16_at(block, 108);
    let scales: &mut [f32; 16] = sized(out.scales);
    *scales = unpack_scales(bytes(block, 96)).map(|scale| d * f32::from(scale));
    out.offsets.fill(NO_OFFSET);
}

/// Low four bits: the nibbles of the first eight bytes. High two: the last four bytes, four scales per bit
/// pair.
#[inline(always)]
fn unpack_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|g| {
        let low = packed[g % 8] >> (4 * (g / 8)) & 15;
        let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

fn encode(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8]) {
    block.fill(0);
    let x: Block<16, 16> = lanes(weights);
    let (groups, d, scales) = match importance {
        None => {
            let groups = search::symmetric_by_steps(&x, 4.0);
            let far = farthest(&groups.scale);
            let inverse = -32.0 / far;
            let stored = |scale: f32| (nearest_even(inverse * scale).clamp(-32.0, 31.0) + 32.0) as u8;
            let scales = groups.scale.map(|scale| if far == 0.0 { 0 } else { stored(scale) });
            (groups, if far == 0.0 { 0.0 } else { 1.0 / inverse }, scales)
        }
        Some(importance) => {
            let square = 2.0 * squares(weights) / weights.len() as f32;
            let by = lanes(&importance.by(weights, square));
            let groups = search::symmetric(&x, &by, 4.0);
            let scales: Block<16, 1> = groups.scale.map(|scale| [scale]);
            let block = search::symmetric(&scales, &sums(&by).map(|sum| [sum]), 32.0);
            (groups, block.scale[0], block.codes.map(|[scale]| scale as u8))
        }
    };
    let mut codes = [0; MAX_BLOCK];
    in_order(&groups.codes, &mut codes);
    let rounded = through_f16(d);
    round_again::<16>(weights, scales.iter().map(|&s| rounded * (f32::from(s) - 32.0)), 4.0, &mut codes);
    for (l, mask) in block[..32].iter_mut().enumerate() {
        *mask = (0..8).fold(0, |mask, plane| mask | (codes[32 * plane + l] >> 2) << plane);
    }
    for (codes, qs) in codes.chunks_exact(128).zip(block[32..96].chunks_exact_mut(32)) {
        pack_planes(codes, qs);
    }
    for (g, bits) in scales.into_iter().enumerate() {
        block[96 + g % 8] |= (bits & 15) << (4 * (g / 8));
        block[104 + g % 4] |= (bits >> 4) << (2 * (g / 4));
    }
    put_f16(block, 108, d);
}
