//! How each format is packed for AVX-512: bits of its codes in lines of 16 rows, and the scales
//! of 16 rows side by side.
//!
//! Codes are unsigned: their bias is subtracted as an integer. Every packing equals the
//! format's `unpack` in `quant`.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL, DQ and VNNI, pointers that are valid
//! for what they name (a group's codes, a block's scales, a unit of activations), and that no other thread
//! accesses the rows of `to`.

use std::arch::x86_64::*;

use tern_quant::MAX_BLOCK;

use crate::dot::portable::scalar;
use crate::dot::x86::avx2::layouts;
use crate::dot::x86::avx2::low_bits;
use crate::dot::x86::avx2::tiles::{Avx512, Layout};
use crate::dot::x86::avx512::scaling::{
    Bytes, Exponents, Floats, HalfFloats, HalvesAndMins, Nibbles, OneFloat, Scaling, SixBits, SmallFloats,
    ZeroPoints,
};
use crate::dot::{PANEL, Rows};
use crate::memory::lines::Line;

/// Columns of a group, which share the scale of their activations.
pub(crate) const GROUP: usize = 32;
/// Columns per unit at most.
const MAX_UNIT: usize = 128;
/// Groups of four columns per group.
pub(crate) const STEPS: usize = GROUP / 4;

/// How a format is packed.
pub(crate) trait Packing {
    /// Weights per block: 32, 64, 128 or 256.
    const LEN: usize;
    /// Low bits of a code, which are packed together: 1, 2, 4 or 8, and as many lines per group.
    const LOW: usize;
    /// Further bits of a code: 0, 1 or 2.
    const HIGH: usize = 0;
    /// Codes are doubled.
    const TWICE: bool = false;
    /// `log2` of the bias of a code.
    const EXCESS: Option<u32> = None;
    /// Codes are indices into a table of values.
    const TABLE: Option<[i8; 16]> = None;
    type Scales: Scaling;
    /// The codes of a block, one per byte.
    unsafe fn codes(rows: &Rows<'_>, block: &[u8], out: &mut [u8; MAX_BLOCK]);
    /// Puts one row's scales of a block among those of all rows.
    fn scales(rows: &Rows<'_>, block: &[u8], row: usize, out: &mut [u8]);
}

/// Columns whose products are summed to one integer: those that share a scale, within limits.
pub(crate) const fn unit<P: Packing>() -> usize {
    let one = P::Scales::ONE || P::Scales::INTEGER_SCALES;
    if one && P::LEN > MAX_UNIT {
        MAX_UNIT
    } else if one {
        P::LEN
    } else if P::Scales::HALVES {
        GROUP / 2
    } else {
        GROUP
    }
}

/// Lines of a group's codes.
pub(crate) const fn group_lines<P: Packing>() -> usize {
    P::LOW + P::HIGH
}

/// Blocks whose scales lie together in front of their codes: as many as fill whole lines.
const fn together<P: Packing>() -> usize {
    let mut blocks = 1;
    while !(blocks * P::Scales::BYTES).is_multiple_of(size_of::<Line>()) {
        blocks *= 2;
    }
    blocks
}

/// Lines of the scales of blocks that lie together.
const fn scale_lines<P: Packing>() -> usize {
    together::<P>() * P::Scales::BYTES / size_of::<Line>()
}

/// Lines of a panel.
pub(crate) fn lines<P: Packing>(cols: usize) -> usize {
    (cols / P::LEN).div_ceil(together::<P>()) * scale_lines::<P>() + cols / GROUP * group_lines::<P>()
}

/// Where the codes of a block start, in lines, and its scales, in bytes.
#[inline(always)]
pub(crate) fn place<P: Packing>(block: usize) -> (usize, usize) {
    let (first, i) = (block / together::<P>(), block % together::<P>());
    let codes = P::LEN / GROUP * group_lines::<P>();
    let line = first * (scale_lines::<P>() + together::<P>() * codes);
    (line + scale_lines::<P>() + i * codes, line * size_of::<Line>() + i * P::Scales::BYTES)
}

/// Packs rows into a panel.
///
/// # Safety
/// The features of `Avx512` are enabled.
#[inline(always)]
pub(crate) unsafe fn pack<P: Packing>(rows: &Rows<'_>, cols: usize, out: &mut [Line]) {
    let each = rows.blocks.len() / rows.count / (cols / P::LEN);
    assert!(rows.count <= PANEL && out.len() == lines::<P>(cols));
    let mut codes = [0; MAX_BLOCK];
    for (r, row) in rows.each().enumerate() {
        for (b, block) in row.chunks_exact(each).enumerate() {
            let (line, scales) = place::<P>(b);
            // SAFETY: the contract of this function.
            unsafe { P::codes(rows, block, &mut codes) };
            let lines = out[line..].chunks_exact_mut(group_lines::<P>()).take(P::LEN / GROUP);
            let groups = codes.as_chunks::<GROUP>().0.iter().zip(lines);
            groups.for_each(|(codes, lines)| put_codes::<P>(codes, r, lines));
            P::scales(rows, block, r, &mut bytes_of(out)[scales..scales + P::Scales::BYTES]);
        }
    }
}

/// Lines as bytes.
#[inline(always)]
fn bytes_of(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: lines are plain bytes without gaps.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// Puts one row's codes of a group into its lane: step `s` is field `s % n` of line `s / n`.
#[inline(always)]
fn put_codes<P: Packing>(codes: &[u8; GROUP], row: usize, lines: &mut [Line]) {
    let mut steps = [0; STEPS];
    for (step, four) in steps.iter_mut().zip(codes.as_chunks::<4>().0) {
        *step = u32::from_le_bytes(*four);
    }
    let mut line = 0;
    for (bits, shift) in [(P::LOW, 0), (P::HIGH, P::LOW)] {
        let fields = 8usize.checked_div(bits).unwrap_or(STEPS);
        let mask = 0x0101_0101 * ((1u32 << bits) - 1);
        for l in 0..bits {
            let mut lane = 0;
            for f in 0..fields {
                lane |= (steps[l * fields + f] >> shift & mask) << (f * bits);
            }
            let lane = lane.to_le_bytes();
            lines[line].0[2 * row] = i16::from_le_bytes([lane[0], lane[1]]);
            lines[line].0[2 * row + 1] = i16::from_le_bytes([lane[2], lane[3]]);
            line += 1;
        }
    }
}

/// The codes of a group, step by step.
///
/// # Safety
/// The lines of a group are readable at `p`; the features of `Avx512` are enabled.
#[inline(always)]
pub(crate) unsafe fn unpack<P: Packing>(p: *const Line) -> [__m512i; STEPS] {
    // SAFETY: the contract of this function.
    unsafe {
        // no closure: it may be compiled separately, without AVX-512
        let mut codes = [_mm512_setzero_si512(); STEPS];
        for (s, codes) in codes.iter_mut().enumerate() {
            *codes = unpack_step::<P>(p, s);
        }
        codes
    }
}

/// The codes of one step of a group.
///
/// # Safety
/// As for `unpack`.
#[inline(always)]
pub(crate) unsafe fn unpack_step<P: Packing>(p: *const Line, s: usize) -> __m512i {
    // SAFETY: the contract of this function.
    unsafe {
        let fields = 8 / P::LOW;
        let line = _mm512_load_si512(p.add(s / fields).cast());
        let up = usize::from(P::TWICE);
        let mask = (0x0101_0101 * ((1u64 << P::LOW) - 1)) as i32;
        let mut out = if P::LOW == 8 {
            line
        } else {
            let line = moved(line, s % fields * P::LOW, up);
            _mm512_and_si512(line, _mm512_set1_epi32(mask << up))
        };
        if let Some(fields) = 8usize.checked_div(P::HIGH) {
            let line = _mm512_load_si512(p.add(P::LOW + s / fields).cast());
            let line = moved(line, s % fields * P::HIGH, P::LOW);
            let mask = _mm512_set1_epi32((0x0101_0101 * ((1 << P::HIGH) - 1)) << P::LOW);
            out = _mm512_ternarylogic_epi32::<0xEA>(line, mask, out); // (line & mask) | out
        }
        if let Some(table) = const { table::<P>() } {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            out = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), out);
        }
        out
    }
}

/// The values of a table with their bias.
const fn table<P: Packing>() -> Option<[u8; 16]> {
    let (Some(values), Some(excess)) = (P::TABLE, P::EXCESS) else { return None };
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (values[i] as u8).wrapping_add(1 << excess);
        i += 1;
    }
    Some(out)
}

/// Moves bits from `from` to `to`.
#[inline(always)]
unsafe fn moved(v: __m512i, from: usize, to: usize) -> __m512i {
    // SAFETY: AVX-512 is enabled.
    unsafe {
        if from >= to {
            _mm512_srlv_epi32(v, _mm512_set1_epi32((from - to) as i32))
        } else {
            _mm512_sllv_epi32(v, _mm512_set1_epi32((to - from) as i32))
        }
    }
}

/// All codes of a block through its layout.
#[inline(always)]
unsafe fn by_layout<L: Layout>(block: &[u8], out: &mut [u8; MAX_BLOCK]) {
    assert!(block.len() == L::BYTES);
    for (i, out) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate().take(L::LEN / GROUP) {
        // SAFETY: the block is whole; AVX-512 is enabled.
        unsafe {
            let mut codes = L::codes::<Avx512>(block.as_ptr(), i);
            if L::SIGNED {
                codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            }
            _mm256_storeu_si256(out.as_mut_ptr().cast(), codes);
        }
    }
}

/// Two bytes of each row side by side.
#[inline(always)]
fn put_half(block: &[u8], at: usize, row: usize, out: &mut [u8]) {
    out[2 * row..2 * row + 2].copy_from_slice(&block[at..at + 2]);
}

/// Declares packings: block length, bits of codes, other constants, kind of scales,
/// codes, and one row's scales.
macro_rules! packings {
    ($($(#[$doc:meta])* $name:ident: $len:literal, $low:literal $(+ $high:literal)?
        $(, $flag:ident = $value:expr)*; $scales:ty;
        |$rows:ident, $block:ident, $codes:ident| $fill:expr;
        |$row:ident, $out:ident| $put:expr;)*) => {
        $($(#[$doc])*
        pub(crate) struct $name;

        impl Packing for $name {
            const LEN: usize = $len;
            const LOW: usize = $low;
            $(const HIGH: usize = $high;)?
            $(packings!(@ $flag $value);)*
            type Scales = $scales;
            #[inline(always)]
            #[allow(unused_unsafe, reason = "some code expressions are safe")]
            unsafe fn codes($rows: &Rows<'_>, $block: &[u8], $codes: &mut [u8; MAX_BLOCK]) {
                let _ = $rows;
                // SAFETY: AVX-512 is enabled.
                unsafe { $fill }
            }
            #[inline(always)]
            fn scales($rows: &Rows<'_>, $block: &[u8], $row: usize, $out: &mut [u8]) {
                let (_, _) = ($rows, $block);
                $put
            }
        })*
    };
    (@ excess $value:expr) => { const EXCESS: Option<u32> = Some($value); };
    (@ twice $value:expr) => { const TWICE: bool = $value; };
    (@ table $value:expr) => { const TABLE: Option<[i8; 16]> = Some($value); };
}

packings! {
    /// Bits as 0 and 2, less 1.
    Q1_0: 128, 1, twice = true, excess = 0; HalfFloats;
    |rows, block, codes| by_layout::<low_bits::Q1_0>(block, codes);
    |row, out| put_half(block, 0, row, out);

    Q2_0: 64, 2, excess = 0; HalfFloats;
    |rows, block, codes| by_layout::<low_bits::Q2_0>(block, codes);
    |row, out| put_half(block, 0, row, out);

    Pq2_0: 128, 2, excess = 0; HalfFloats;
    |rows, block, codes| by_layout::<low_bits::Pq2_0>(block, codes);
    |row, out| put_half(block, 0, row, out);

    /// Codes before scales.
    Tq2_0G128: 128, 2, excess = 0; HalfFloats;
    |rows, block, codes| by_layout::<low_bits::Tq2_0G128>(block, codes);
    |row, out| put_half(block, 32, row, out);

    Tq2_0: 256, 2, excess = 0; HalfFloats;
    |rows, block, codes| by_layout::<low_bits::Tq2_0>(block, codes);
    |row, out| put_half(block, 64, row, out);

    Tq1_0: 256, 2, excess = 0; HalfFloats;
    |rows, block, codes| by_layout::<low_bits::Tq1_0>(block, codes);
    |row, out| put_half(block, 52, row, out);

    Ptq1_0: 128, 2, excess = 0; HalfFloats;
    |rows, block, codes| by_layout::<low_bits::Ptq1_0>(block, codes);
    |row, out| put_half(block, 26, row, out);

    /// One scale for all rows.
    I2S: 128, 2, excess = 0; OneFloat;
    |rows, block, codes| by_layout::<low_bits::I2S>(block, codes);
    |row, out| out[4 * row..4 * row + 4].copy_from_slice(&rows.tail[..4]);

    Q4_0: 32, 4, excess = 3; HalfFloats;
    |rows, block, codes| by_layout::<layouts::Q4_0>(block, codes);
    |row, out| put_half(block, 0, row, out);

    Q4_1: 32, 4; HalvesAndMins;
    |rows, block, codes| by_layout::<layouts::Q4_1>(block, codes);
    |row, out| {
        put_half(block, 0, row, out);
        put_half(block, 2, row, &mut out[2 * PANEL..]);
    };

    Int4G32: 32, 4; ZeroPoints;
    |rows, block, codes| by_layout::<layouts::Int4G32>(block, codes);
    |row, out| ZeroPoints::put(row, out, block);

    Int4G128: 128, 4; ZeroPoints;
    |rows, block, codes| by_layout::<layouts::Int4G128>(block, codes);
    |row, out| ZeroPoints::put(row, out, block);

    Q5_0: 32, 4 + 1, excess = 4; HalfFloats;
    |rows, block, codes| by_layout::<layouts::Q5_0>(block, codes);
    |row, out| put_half(block, 0, row, out);

    Q5_1: 32, 4 + 1; HalvesAndMins;
    |rows, block, codes| by_layout::<layouts::Q5_1>(block, codes);
    |row, out| {
        put_half(block, 0, row, out);
        put_half(block, 2, row, &mut out[2 * PANEL..]);
    };

    Q8_0: 32, 8, excess = 7; HalfFloats;
    |rows, block, codes| by_layout::<layouts::Q8_0>(block, codes);
    |row, out| put_half(block, 0, row, out);

    Q2K: 256, 2; Nibbles;
    |rows, block, codes| by_layout::<layouts::Q2K>(block, codes);
    |row, out| {
        let halves = &block[80..84];
        Nibbles::put(row, out, halves, &block[..16]);
    };

    /// Scales are negated: with -32, a code of -4 would become 128.
    Q3K: 256, 2 + 1, excess = 2; Bytes<16>;
    |rows, block, codes| by_layout::<layouts::Q3K>(block, codes);
    |row, out| {
        let scales = layouts::q3_k_scales(block).map(u8::wrapping_neg);
        Bytes::<16>::put(row, out, &[block[108], block[109] ^ 0x80], &scales);
    };

    Q4K: 256, 4; SixBits;
    |rows, block, codes| by_layout::<layouts::Q4K>(block, codes);
    |row, out| SixBits::put(row, out, block);

    Q5K: 256, 4 + 1; SixBits;
    |rows, block, codes| by_layout::<layouts::Q5K>(block, codes);
    |row, out| SixBits::put(row, out, block);

    Q6K: 256, 4 + 2, excess = 5; Bytes<16, true>;
    |rows, block, codes| by_layout::<layouts::Q6K>(block, codes);
    |row, out| Bytes::<16, true>::put(row, out, &block[208..210], &block[192..208]);

    Iq4Nl: 32, 4, table = layouts::IQ4, excess = 7; HalfFloats;
    |rows, block, codes| by_layout::<layouts::Q4_0>(block, codes);
    |row, out| put_half(block, 0, row, out);

    Iq4Xs: 256, 4, table = layouts::IQ4, excess = 7; Bytes<8>;
    |rows, block, codes| {
        for (i, out) in codes.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            _mm256_storeu_si256(out.as_mut_ptr().cast(), layouts::nibbles(block[8 + 16 * i..].as_ptr()));
        }
    };
    |row, out| Bytes::<8>::put(row, out, &block[..2], &layouts::iq4_xs_scales(block));

    Mxfp4: 32, 4, table = layouts::E2M1, excess = 4; Exponents;
    |rows, block, codes| {
        _mm256_storeu_si256(codes.as_mut_ptr().cast(), layouts::nibbles(block[1..].as_ptr()));
    };
    |row, out| Exponents::put(row, out, block[0]);

    Nvfp4: 64, 4, table = layouts::E2M1, excess = 4; SmallFloats;
    |rows, block, codes| {
        for (i, out) in codes.as_chunks_mut::<GROUP>().0.iter_mut().enumerate().take(2) {
            let nibbles = layouts::nibbles_of_eight(block[4 + 16 * i..].as_ptr());
            _mm256_storeu_si256(out.as_mut_ptr().cast(), nibbles);
        }
    };
    |row, out| SmallFloats::put(row, out, &layouts::nvfp4_scales(block));
}

/// Any format, unpacked by its own function: one byte per code, two floats for each 16.
pub(crate) struct Plain;

impl Packing for Plain {
    const LEN: usize = GROUP;
    const LOW: usize = 8;
    const EXCESS: Option<u32> = Some(7);
    type Scales = Floats;
    unsafe fn codes(_rows: &Rows<'_>, _block: &[u8], _out: &mut [u8; MAX_BLOCK]) {}
    fn scales(_rows: &Rows<'_>, _block: &[u8], _row: usize, _out: &mut [u8]) {}
}

/// Packs rows of any format into a panel.
pub(crate) fn pack_plain(rows: &Rows<'_>, cols: usize, out: &mut [Line]) {
    let (len, bytes) = (rows.quant.block_len, rows.quant.block_bytes());
    assert!(rows.blocks.len() == cols / len * bytes * rows.count && out.len() == lines::<Plain>(cols));
    let mut block = scalar::Block::empty();
    for (r, row) in rows.each().enumerate() {
        for (b, raw) in row.chunks_exact(bytes).enumerate() {
            block.fill(rows.quant, raw, rows.tail);
            for (g, codes) in block.codes[..len].as_chunks::<GROUP>().0.iter().enumerate() {
                let at = b * len / GROUP + g;
                let codes = codes.map(|c| c as u8 ^ 0x80);
                let line = place::<Plain>(at).0;
                put_codes::<Plain>(&codes, r, &mut out[line..line + STEPS]);
                let floats = &mut out[line - Floats::LINES..line];
                Floats::put(r, floats, &block.scales[2 * g..2 * g + 2], &block.offsets[2 * g..2 * g + 2]);
            }
        }
    }
}
