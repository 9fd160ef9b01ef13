//! IQ1, IQ2 and IQ3: eight weights at a time are points of a grid, with signs and a scale.
//!
//! Such a format is a [`Codebook`]: codes are the signed coordinates of the points, and scales
//! are odd numbers times the scale of the block. Kernels read blocks through the functions
//! that [`Quant::decode`] uses.

mod grids;

use crate::FieldType::{F16, ScatteredF16, U8, U16};
use crate::bits::{bytes, f16_at, f16_to_f32};
use crate::{Codec, Codes, Dialect, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// What the bytes of a block mean.
pub trait Codebook {
    /// The format.
    const QUANT: &'static Quant;
    /// Weights that share a scale.
    const GROUP: usize;
    /// All values of codes, ascending.
    const VALUES: &'static [i8];

    /// Codes `8 * i ..` of a block, one per byte, the first one in the lowest byte.
    fn eight(block: &[u8], i: usize) -> u64;

    /// The scale of a block.
    fn scale(block: &[u8]) -> f32;

    /// The scale of group `g` in parts of the block's: an odd number below 32.
    fn multiple(block: &[u8], g: usize) -> u8;
}

/// Two bits per weight and scales of 32: four indices of a byte, four signs of seven bits
/// and a scale in eight bytes.
pub static IQ2_XXS: Quant = quant::<Iq2Xxs>("IQ2_XXS", 16, &[field("d", F16, 1), field("qs", U16, 32)]);

/// Two bits per weight and scales of 16: an index of nine bits and signs of seven in each word.
pub static IQ2_XS: Quant =
    quant::<Iq2Xs>("IQ2_XS", 17, &[field("d", F16, 1), field("qs", U16, 32), field("scales", U8, 8)]);

/// Three bits per weight and scales of 32: two indices of four weights, signs as in [`IQ2_XXS`].
pub static IQ3_XXS: Quant = quant::<Iq3Xxs>("IQ3_XXS", 18, &[field("d", F16, 1), field("qs", U8, 96)]);

/// -1, 0 and 1, all shifted by an eighth up or down in each 32 weights.
pub static IQ1_S: Quant =
    quant::<Iq1S>("IQ1_S", 19, &[field("d", F16, 1), field("qs", U8, 32), field("qh", U16, 8)]);

/// Three bits per weight, scales of 32, and one sign per weight.
pub static IQ3_S: Quant = quant::<Iq3S>(
    "IQ3_S",
    21,
    &[
        field("d", F16, 1),
        field("qs", U8, 64),
        field("qh", U8, 8),
        field("signs", U8, 32),
        field("scales", U8, 4),
    ],
);

/// Two bits per weight, scales of 16, and one sign per weight.
pub static IQ2_S: Quant = quant::<Iq2S>(
    "IQ2_S",
    22,
    &[
        field("d", F16, 1),
        field("qs", U8, 32),
        field("signs", U8, 32),
        field("qh", U8, 8),
        field("scales", U8, 8),
    ],
);

/// -1, 0 and 1, shifted by an eighth up or down in each eight weights, and scales of 16.
pub static IQ1_M: Quant =
    quant::<Iq1M>("IQ1_M", 29, &[field("qs", U8, 32), field("qh", U8, 16), field("scales", ScatteredF16, 1)]);

const fn field(name: &'static str, ty: FieldType, count: usize) -> Field {
    Field::new(name, ty, count)
}

const fn quant<C: Codebook>(name: &'static str, id: u32, fields: &'static [Field]) -> Quant {
    let (least, most) = (C::VALUES[0], C::VALUES[C::VALUES.len() - 1]);
    let codes = Codes {
        least,
        most,
        step: step(C::VALUES),
        integer_scales: true,
        ..Codes::new(C::GROUP, unpack::<C>)
    };
    Quant {
        name,
        gguf_id: Some(id),
        dialect: Dialect::Ggml,
        block_len: 256,
        fields,
        tail: 0,
        codec: Codec::Codes(codes),
        encode: None,
    }
}

/// The largest step that leads from the first value to all others.
const fn step(values: &[i8]) -> i8 {
    let (mut step, mut i) = (0, 1);
    while i < values.len() {
        let (mut a, mut b) = (values[i] - values[i - 1], step);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (step, i) = (a, i + 1);
    }
    step
}

fn unpack<C: Codebook>(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    for (i, codes) in out.codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *codes = C::eight(block, i).to_le_bytes().map(|code| code as i8);
    }
    let scale = C::scale(block);
    for (g, out) in out.scales.iter_mut().enumerate() {
        *out = scale * f32::from(C::multiple(block, g));
    }
    out.offsets.fill(NO_OFFSET);
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// Negates the bytes, all of them positive, whose bit is set.
#[inline(always)]
fn signed(magnitudes: u64, signs: u8) -> u64 {
    let bits = (u64::from(signs) * ONES) & 0x8040_2010_0804_0201;
    let ones = (bits + 0x7F * ONES) >> 7 & ONES;
    (magnitudes ^ (ones * 0xFF)) + ones
}

/// Seven signs, and an eighth that makes the number of negative ones even.
#[inline(always)]
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Values of [`grids::IQ1`] as codes: shifted by an eighth up, or down.
#[inline(always)]
fn shifted(point: u64, down: bool) -> u64 {
    let less = if down { 9 } else { 7 };
    // the top bits keep a borrow from the next byte
    ((point | (0x80 * ONES)) - less * ONES) ^ (0x80 * ONES)
}

#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*bytes(block, at))
}

#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes(block, at))
}

/// Two points of four coordinates.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// `2 * s + 1`, where `s` is nibble `n` from `at` on.
#[inline(always)]
fn odd_nibble(block: &[u8], at: usize, n: usize) -> u8 {
    2 * (block[at + n / 2] >> (4 * (n % 2)) & 15) + 1
}

const IQ1_VALUES: &[i8] = &[-9, -7, -1, 1, 7, 9];
const IQ2_VALUES: &[i8] = &[-43, -25, -8, 8, 25, 43];

/// [`IQ2_XXS`]
#[derive(Debug)]
pub struct Iq2Xxs;
impl Codebook for Iq2Xxs {
    const QUANT: &'static Quant = &IQ2_XXS;
    const GROUP: usize = 32;
    const VALUES: &'static [i8] = IQ2_VALUES;
    #[inline(always)]
    fn eight(block: &[u8], i: usize) -> u64 {
        let at = 2 + 8 * (i / 4);
        let signs = u32_at(block, at + 4) >> (7 * (i % 4));
        signed(grids::IQ2_XXS[usize::from(block[at + i % 4])], even_signs(signs))
    }
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        f16_at(block, 0) / 8.0
    }
    #[inline(always)]
    fn multiple(block: &[u8], g: usize) -> u8 {
        2 * (block[9 + 8 * g] >> 4) + 1
    }
}

/// [`IQ2_XS`]
#[derive(Debug)]
pub struct Iq2Xs;
impl Codebook for Iq2Xs {
    const QUANT: &'static Quant = &IQ2_XS;
    const GROUP: usize = 16;
    const VALUES: &'static [i8] = IQ2_VALUES;
    #[inline(always)]
    fn eight(block: &[u8], i: usize) -> u64 {
        let word = u16_at(block, 2 + 2 * i);
        signed(grids::IQ2_XS[usize::from(word & 511)], even_signs(u32::from(word >> 9)))
    }
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        f16_at(block, 0) / 8.0
    }
    #[inline(always)]
    fn multiple(block: &[u8], g: usize) -> u8 {
        odd_nibble(block, 66, g)
    }
}

/// [`IQ2_S`]
#[derive(Debug)]
pub struct Iq2S;
impl Codebook for Iq2S {
    const QUANT: &'static Quant = &IQ2_S;
    const GROUP: usize = 16;
    const VALUES: &'static [i8] = IQ2_VALUES;
    #[inline(always)]
    fn eight(block: &[u8], i: usize) -> u64 {
        let high = block[66 + i / 4] >> (2 * (i % 4)) & 3;
        signed(grids::IQ2_S[usize::from(high) << 8 | usize::from(block[2 + i])], block[34 + i])
    }
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        f16_at(block, 0) / 8.0
    }
    #[inline(always)]
    fn multiple(block: &[u8], g: usize) -> u8 {
        odd_nibble(block, 74, g)
    }
}

/// [`IQ3_XXS`]
#[derive(Debug)]
pub struct Iq3Xxs;
impl Codebook for Iq3Xxs {
    const QUANT: &'static Quant = &IQ3_XXS;
    const GROUP: usize = 32;
    const VALUES: &'static [i8] = &[-31, -26, -22, -18, -14, -10, -6, -2, 2, 6, 10, 14, 18, 22, 26, 31];
    #[inline(always)]
    fn eight(block: &[u8], i: usize) -> u64 {
        let point = |n: usize| grids::IQ3_XXS[usize::from(block[2 + n])];
        let signs = u32_at(block, 66 + 4 * (i / 4)) >> (7 * (i % 4));
        signed(pair(point(2 * i), point(2 * i + 1)), even_signs(signs))
    }
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        f16_at(block, 0) / 2.0
    }
    #[inline(always)]
    fn multiple(block: &[u8], g: usize) -> u8 {
        2 * (block[69 + 4 * g] >> 4) + 1
    }
}

/// [`IQ3_S`]
#[derive(Debug)]
pub struct Iq3S;
impl Codebook for Iq3S {
    const QUANT: &'static Quant = &IQ3_S;
    const GROUP: usize = 32;
    const VALUES: &'static [i8] = &[-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15];
    #[inline(always)]
    fn eight(block: &[u8], i: usize) -> u64 {
        let high = usize::from(block[66 + i / 4]) >> (2 * (i % 4));
        let point = |n: usize| grids::IQ3_S[(high >> n & 1) << 8 | usize::from(block[2 + 2 * i + n])];
        signed(pair(point(0), point(1)), block[74 + i])
    }
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        f16_at(block, 0)
    }
    #[inline(always)]
    fn multiple(block: &[u8], g: usize) -> u8 {
        odd_nibble(block, 106, g)
    }
}

/// [`IQ1_S`]
#[derive(Debug)]
pub struct Iq1S;
impl Codebook for Iq1S {
    const QUANT: &'static Quant = &IQ1_S;
    const GROUP: usize = 32;
    const VALUES: &'static [i8] = IQ1_VALUES;
    #[inline(always)]
    fn eight(block: &[u8], i: usize) -> u64 {
        let word = u16_at(block, 34 + 2 * (i / 4));
        let high = usize::from(word >> (3 * (i % 4)) & 7);
        shifted(grids::IQ1[high << 8 | usize::from(block[2 + i])], word >> 15 == 1)
    }
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        f16_at(block, 0) / 8.0
    }
    #[inline(always)]
    fn multiple(block: &[u8], g: usize) -> u8 {
        2 * (block[35 + 2 * g] >> 4 & 7) + 1
    }
}

/// [`IQ1_M`]
#[derive(Debug)]
pub struct Iq1M;
impl Codebook for Iq1M {
    const QUANT: &'static Quant = &IQ1_M;
    const GROUP: usize = 16;
    const VALUES: &'static [i8] = IQ1_VALUES;
    #[inline(always)]
    fn eight(block: &[u8], i: usize) -> u64 {
        let nibble = block[32 + i / 2] >> (4 * (i % 2));
        let high = usize::from(nibble & 7);
        shifted(grids::IQ1[high << 8 | usize::from(block[i])], nibble & 8 != 0)
    }
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        let nibbles = (0..4).map(|n| (block[49 + 2 * n] as u16 >> 4) << (4 * n));
        f16_to_f32(nibbles.sum()) / 8.0
    }
    #[inline(always)]
    fn multiple(block: &[u8], g: usize) -> u8 {
        2 * (u16_at(block, 48 + 2 * (g / 4)) >> (3 * (g % 4)) & 7) as u8 + 1
    }
}
