//! Two-bit codes side by side: four consecutive weights in a byte, lowest bits first.
//!
//! One codec in four layouts: 64 or 128 weights per block, the scale before or after the codes.

use crate::bits::{bytes, f16_at, put_f16, spread_pairs, take_from_each};
use crate::encoding::rounding::{farthest, inverse, truncate};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, NO_OFFSET, Quant, Unpack, Unpacked};

const fn quant(name: &'static str, id: u32, dialect: Dialect, block_len: usize, layout: Layout) -> Quant {
    Quant {
        name,
        gguf_id: Some(id),
        dialect,
        block_len,
        fields: layout.fields,
        tail: 0,
        codec: Codec::Codes(Codes { least: -1, most: layout.most, ..Codes::new(block_len, layout.unpack) }),
        encode: Some(Encode::Plain(layout.encode)),
    }
}

struct Layout {
    fields: &'static [Field],
    most: i8,
    unpack: Unpack,
    encode: fn(&[f32], &mut [u8]),
}

const G64: Layout = Layout {
    fields: &[Field::new("d", FieldType::F16, 1), Field::new("qs", FieldType::U8, 16)],
    most: 2,
    unpack: unpack_scale_first::<16>,
    encode: encode_scale_first,
};

const G128: Layout = Layout {
    fields: &[Field::new("d", FieldType::F16, 1), Field::new("qs", FieldType::U8, 32)],
    most: 2,
    unpack: unpack_scale_first::<32>,
    encode: encode_scale_first,
};

const G128_SCALE_LAST: Layout = Layout {
    fields: &[Field::new("qs", FieldType::U8, 32), Field::new("d", FieldType::F16, 1)],
    most: 1,
    unpack: unpack_scale_last,
    encode: encode_scale_last,
};

/// `w = d * (code - 1)`, code 3 being `+2d`; 64 weights. Encodes as ggml does: `d` is the largest magnitude.
pub static Q2_0: Quant = quant("Q2_0", 42, Dialect::Ggml, 64, G64);

/// Id 42 in PrismML's first generation of files: [`Q2_0`] with 128 weights per block.
pub static Q2_0_G128: Quant = quant("Q2_0_G128", 42, Dialect::PrismLegacy, 128, G128);

/// PrismML's own id for the bytes of [`Q2_0_G128`].
pub static PQ2_0: Quant = quant("PQ2_0", 142, Dialect::Prism, 128, G128);

/// OxiBonsai's private layout of id 42: the codes come first and the scale last, and code 3 is zero.
pub static TQ2_0_G128: Quant = quant("TQ2_0_G128", 42, Dialect::OxiBonsai, 128, G128_SCALE_LAST);

fn unpack_scale_first<const BYTES: usize>(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    unpack_codes(bytes::<BYTES>(block, 2), out.codes, spread_pairs);
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = NO_OFFSET;
}

fn unpack_scale_last(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    unpack_codes(bytes::<32>(block, 0), out.codes, |byte| {
        let pairs = spread_pairs(byte);
        pairs ^ (pairs & pairs >> 1 & 0x0101_0101) << 1 // 3 becomes 1, which is zero
    });
    out.scales[0] = f16_at(block, 32);
    out.offsets[0] = NO_OFFSET;
}

#[inline(always)]
fn unpack_codes<const BYTES: usize>(qs: &[u8; BYTES], codes: &mut [i8], spread: impl Fn(u8) -> u32) {
    for (codes, &byte) in codes.as_chunks_mut::<4>().0.iter_mut().zip(qs) {
        *codes = take_from_each(spread(byte), 1).to_le_bytes().map(|code| code as i8);
    }
}

fn encode_scale_first(weights: &[f32], block: &mut [u8]) {
    let (d, qs) = block.split_at_mut(2);
    put_f16(d, 0, encode_codes(weights, qs));
}

fn encode_scale_last(weights: &[f32], block: &mut [u8]) {
    let (qs, d) = block.split_at_mut(32);
    put_f16(d, 0, encode_codes(weights, qs));
}

/// Writes the codes and returns the scale.
fn encode_codes(weights: &[f32], qs: &mut [u8]) -> f32 {
    let d = farthest(weights).abs();
    let id = inverse(d);
    for (byte, weights) in qs.iter_mut().zip(weights.chunks_exact(4)) {
        *byte = weights.iter().enumerate().fold(0, |byte, (j, &w)| {
            let code = truncate((w * id).round()).saturating_add(1).clamp(0, 3) as u8;
            byte | code << (2 * j)
        });
    }
    d
}
