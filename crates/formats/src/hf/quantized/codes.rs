//! A matrix of codes with a scale and a zero per group of columns, as rows of the block format that has them.
//!
//! Codes of up to four bits with a zero point are INT4_128 or, if groups are smaller, INT4_32: exactly.
//! Symmetric codes are also exact in Q4_0 and Q8_0, whose blocks repeat the scale of their group, if it is
//! f16. The offsets of MLX are those of Q4_1. What fits none of these is decoded to F16.

use tern_quant::{F16, INT4_32, INT4_128, Q4_0, Q4_1, Q8_0, Quant};

use super::super::matrix::Matrix;
use crate::safetensors::Entry;

/// Columns whose codes are packed together in all formats used here.
const BLOCK: usize = 32;

/// A matrix of codes, each with the scale and the zero of the group of its column.
pub(super) struct Codes {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) bits: u32,
    /// The group of each column.
    pub(super) groups: Vec<u32>,
    pub(super) count: usize,
}

/// What is subtracted from the codes of a matrix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zeros {
    /// The middle of the codes.
    Middle,
    /// A zero point of each group.
    Points,
    /// Nothing: an offset is added after the scale.
    Offsets,
}

/// The scale and the zero of a group: `w = scale * (code - point) + offset`.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) scale: f32,
    pub(super) point: u32,
    pub(super) offset: f32,
}

impl Zeros {
    pub(super) fn of(symmetric: bool) -> Zeros {
        if symmetric { Zeros::Middle } else { Zeros::Points }
    }
}

impl Group {
    pub(super) fn with_point(scale: f32, point: u32) -> Group {
        Group { scale, point, offset: 0.0 }
    }
}

/// What belongs to a matrix of codes: functions, so that files are read when the rows are.
pub(super) struct Values<C, G> {
    /// The code of a row and column.
    pub(super) code: C,
    /// The group of a row and number.
    pub(super) group: G,
}

impl Codes {
    /// Whether each block of this many columns is in one group.
    fn has_whole_blocks(&self, len: usize) -> bool {
        self.cols.is_multiple_of(len)
            && self.groups.chunks(len).all(|block| block.iter().all(|g| *g == block[0]))
    }

    /// The format that has these weights; `halves` says whether scales are f16.
    fn format(&self, zeros: Zeros, halves: bool) -> &'static Quant {
        match (self.bits, zeros) {
            _ if !self.has_whole_blocks(BLOCK) => &F16,
            (8, Zeros::Middle) => &Q8_0,
            (5.., _) => &F16,
            (_, Zeros::Offsets) => &Q4_1,
            _ if self.has_whole_blocks(INT4_128.block_len) => &INT4_128,
            (4, Zeros::Middle) if halves => &Q4_0,
            _ => &INT4_32,
        }
    }

    /// The rows in the format that has them.
    pub(super) fn into_matrix<C, G>(self, zeros: Zeros, scales: &Entry, values: Values<C, G>) -> Matrix
    where
        C: Fn(usize, usize) -> u32 + Send + Sync + 'static,
        G: Fn(usize, usize) -> Group + Send + Sync + 'static,
    {
        let format = self.format(zeros, scales.dtype.name == "F16");
        let shape = vec![self.rows as u64, self.cols as u64];
        Matrix::made(format, shape, move || self.encode(format, &values))
    }

    fn encode<C, G>(&self, format: &Quant, values: &Values<C, G>) -> Vec<u8>
    where
        C: Fn(usize, usize) -> u32,
        G: Fn(usize, usize) -> Group,
    {
        let mut out = Vec::with_capacity(self.rows * self.cols / format.block_len * format.block_bytes());
        for row in 0..self.rows {
            let groups: Vec<Group> = (0..self.count).map(|g| (values.group)(row, g)).collect();
            if format == &F16 {
                for col in 0..self.cols {
                    let Group { scale, point, offset } = groups[self.groups[col] as usize];
                    let code = (values.code)(row, col) as f32 - point as f32;
                    out.extend(half(scale * code + offset));
                }
                continue;
            }
            for start in (0..self.cols).step_by(BLOCK) {
                let group = groups[self.groups[start] as usize];
                let code = |i: usize| (values.code)(row, start + i);
                if start.is_multiple_of(format.block_len) {
                    put_group(format, group, &mut out);
                }
                match format == &Q8_0 {
                    true => out.extend((0..BLOCK).map(|i| (code(i) as u8).wrapping_sub(128))),
                    false => out.extend((0..BLOCK / 2).map(|i| (code(i) | code(i + BLOCK / 2) << 4) as u8)),
                }
            }
        }
        out
    }
}

/// What a block has before its codes.
fn put_group(format: &Quant, group: Group, out: &mut Vec<u8>) {
    if format == &INT4_32 || format == &INT4_128 {
        out.extend(group.scale.to_le_bytes());
        out.push(group.point as u8);
        return;
    }
    out.extend(half(group.scale));
    if format == &Q4_1 {
        out.extend(half(group.offset));
    }
}

/// The bytes of a number in f16, rounded to the nearest.
pub(super) fn half(x: f32) -> [u8; 2] {
    let mut out = Vec::with_capacity(2);
    // one weight is a whole block of F16, and it has an encoder
    let _ = F16.encode(&[x], &mut out);
    [out[0], out[1]]
}
