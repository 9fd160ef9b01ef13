//! Codes of one row of a record: how they are stored, and where.

use half::f16;

use super::layout::Layout;
use crate::shared::{CHUNK, TILE};

/// A row of a record: `g` of the lanes that hold it, and whether it is the lanes' second row, `g + 8`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordRow {
    pub(super) g: usize,
    pub(super) second: usize,
}

impl RecordRow {
    /// The place of row `r` of a matrix in its record.
    pub(super) fn of(r: usize) -> RecordRow {
        RecordRow { g: r % 8, second: r % TILE / 8 }
    }
}

impl RecordRow {
    /// Writes floats of a chunk, times a factor, as halves: a lane has four neighbouring columns of sixteen.
    pub(super) fn put_halves(self, record: &mut [u8], floats: &[f32], factor: f32) {
        for (n, four) in floats.chunks(4).enumerate() {
            let at = (n / 4 * 32 + self.g * 4 + n % 4) * 16 + self.second * 8;
            let places = record[at..at + 8].as_chunks_mut::<2>().0;
            for (i, x) in four.iter().enumerate() {
                // pairs are two columns apart
                places[i % 2 * 2 + i / 2] = f16::from_f32(x * factor).to_le_bytes();
            }
        }
    }
}

/// Bits of codes: `bits` of them from bit `down` on.
#[derive(Clone, Copy)]
struct BitRange {
    bits: usize,
    down: usize,
}

impl Layout {
    /// Codes as they are stored: of one bit, set for -1; of two, plus 2; others signed, in the low bits.
    pub(super) fn stored(&self, codes: &[i8], stored: &mut [u8; CHUNK]) {
        let mut each = |f: fn(u8, u8) -> u8, by: i32| {
            stored.iter_mut().zip(codes).for_each(|(s, c)| *s = f(*c as u8, by as u8));
        };
        match self.bits {
            1 => each(|c, _| c >> 7, 0),
            _ if self.negated => each(|c, _| c.wrapping_neg(), 0),
            _ => each(u8::wrapping_sub, self.centre),
        }
        if self.is_raised() {
            stored.iter_mut().for_each(|s| *s ^= 2); // also those after the end of a row: they are zeros
        }
    }

    /// Writes a row's codes of a chunk into a record of zeros.
    pub(super) fn put(&self, record: &mut [u8], row: RecordRow, codes: &[u8; CHUNK]) {
        if self.is_signs() {
            return put_bits(record, row, codes);
        }
        let (upper, lower) = record.split_at_mut(256 * self.bits);
        put_plane(upper, row, BitRange { bits: self.bits, down: self.low }, codes);
        put_plane(lower, row, BitRange { bits: self.low, down: 0 }, codes);
    }
}

/// Writes bits of codes into a plane; a plane of no bits is empty.
fn put_plane(plane: &mut [u8], row: RecordRow, range: BitRange, codes: &[u8; CHUNK]) {
    let down = range.down;
    match range.bits {
        0 => (),
        1 => put_plane_of::<1>(plane, row, down, codes),
        2 => put_plane_of::<2>(plane, row, down, codes),
        4 => put_plane_of::<4>(plane, row, down, codes),
        8 => put_plane_of::<8>(plane, row, down, codes),
        bits => unreachable!("planes have 1, 2, 4 or 8 bits, not {bits}"),
    }
}

/// The same, compiled for a number of bits: loading a model spends its time here.
fn put_plane_of<const BITS: usize>(plane: &mut [u8], row: RecordRow, down: usize, codes: &[u8; CHUNK]) {
    let mask = u128::from_le_bytes([((1u32 << BITS) - 1) as u8; 16]);
    let (sixteens, _) = codes.as_chunks::<16>();
    for (n, parts) in sixteens.chunks_exact(8 / BITS).enumerate() {
        let mut words = 0; // sixteen columns at a time, the first ones at the top of their bytes
        for (m, part) in parts.iter().enumerate() {
            words |= (u128::from_le_bytes(*part) >> down & mask) << (8 - BITS * (m + 1));
        }
        // those of two bits alternate between both rows, as the matrix unit takes them as bits
        let n = if BITS == 2 { n * 2 + row.second } else { row.second * BITS + n };
        for (q, word) in words.to_le_bytes().as_chunks::<4>().0.iter().enumerate() {
            let lane = row.g * 4 + q;
            let at = if BITS == 1 { lane * 8 + n * 4 } else { n / 4 * 512 + lane * 16 + n % 4 * 4 };
            plane[at..at + 4].copy_from_slice(word);
        }
    }
}

/// Writes codes of one bit into the words of the lanes that hold them.
fn put_bits(record: &mut [u8], row: RecordRow, codes: &[u8; CHUNK]) {
    for (q, columns) in codes.as_chunks::<32>().0.iter().enumerate() {
        let mut word = [0; 4];
        for (byte, eight) in word.iter_mut().zip(columns.as_chunks::<8>().0) {
            let ones = u64::from_le_bytes(*eight) & 0x0101_0101_0101_0101;
            *byte = (ones.wrapping_mul(0x8040_2010_0804_0201) >> 56) as u8; // the first one at the top
        }
        let at = ((row.g * 4 + q) * 2 + row.second) * 4;
        record[at..at + 4].copy_from_slice(&word);
    }
}
