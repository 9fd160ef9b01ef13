//! The layout of weights on the device.
//!
//! Every integer format is `scale * code + offset` for each group of weights, so one layout serves them
//! all: records of 16 rows by 128 columns with codes in planes of 1, 2, 4 or 8 bits, in the order of the
//! matrix unit's lanes (`kernels/weights/record.cuh`), then scales and offsets as halves. Matrices of
//! floats have records of halves.

use tern_quant::{BF16, F16, Quant};

use crate::shared::CHUNK;

/// The shape of a record: everything a kernel is compiled for, and how codes are stored in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bits of the first plane: the upper ones of a code.
    pub(crate) bits: usize,
    /// Bits of the second plane; 0 if there is none.
    pub(crate) low: usize,
    /// Weights that share a scale, at most a chunk.
    pub(crate) group: usize,
    /// Whether groups have offsets.
    pub(crate) offsets: bool,
    /// The code that stands for zero.
    pub(super) centre: i32,
    /// Whether codes and scales are stored with the other sign: two bits hold -2 to 1, but not -1 to 2.
    pub(super) negated: bool,
}

/// Bits of a half.
const HALF: usize = 16;

impl Layout {
    /// The layout of a matrix of halves.
    pub(crate) const HALVES: Layout =
        Layout { bits: HALF, low: 0, group: CHUNK, offsets: false, centre: 0, negated: false };

    /// The layout of a format's matrices: of its codes, or of halves for floats of 16 bits. `None` for wider
    /// floats and formats that cannot be run.
    pub(crate) fn of(quant: &Quant) -> Option<Layout> {
        if *quant == F16 || *quant == BF16 {
            return Some(Layout::HALVES);
        }
        let codes = quant.codes()?;
        let (least, most) = (i32::from(codes.least), i32::from(codes.most));
        // with offsets the middle code stands for zero: scale and offset are rounded to halves, and the
        // nearer they are to the weights the less that costs
        let centre = if codes.offsets { least + (most - least + 1) / 2 } else { 0 };
        let negated = (least, most, codes.offsets) == (-1, 2, false);
        let (least, most) = if negated { (-most, -least) } else { (least, most) };
        let holds = |bits: usize| -1 << (bits - 1) <= least - centre && most - centre < 1 << (bits - 1);
        let (bits, low) = match (least, most) {
            // as bits, see `is_signs`
            (-1, 1) if !codes.offsets && codes.step == 2 && codes.group >= CHUNK => (1, 0),
            _ => [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2)]
                .into_iter()
                .find(|(bits, low)| holds(bits + low))
                .unwrap_or((8, 0)),
        };
        Some(Layout { bits, low, group: codes.group.min(CHUNK), offsets: codes.offsets, centre, negated })
    }

    /// Chunks of a row; the last one is padded with zeros.
    pub(crate) fn chunks(cols: usize) -> usize {
        cols.div_ceil(CHUNK)
    }

    /// Groups of a chunk.
    pub(crate) fn groups(&self) -> usize {
        CHUNK / self.group
    }

    /// Whether weights are halves, not codes.
    pub(crate) fn is_halves(&self) -> bool {
        self.bits == HALF
    }

    /// Whether codes are signs: the matrix unit multiplies them as bits.
    pub(crate) fn is_signs(&self) -> bool {
        self.bits == 1
    }

    /// Whether codes are stored plus 2, so that they are not negative: those of two bits.
    pub(crate) fn is_raised(&self) -> bool {
        (self.bits, self.low) == (2, 0)
    }

    /// Whether codes can be multiplied where they are in their bytes (`kernels/weights/placed.cuh`).
    pub(crate) fn is_placed(&self) -> bool {
        (self.is_signs() || self.is_raised()) && !self.offsets && self.groups() == 1
    }

    /// Bytes of a record.
    pub(crate) fn bytes(&self) -> usize {
        self.offsets_at() + if self.offsets { 32 * self.groups() } else { 0 }
    }

    /// Where the scales of a record begin.
    pub(super) fn scales_at(&self) -> usize {
        256 * (self.bits + self.low)
    }

    /// Where its offsets begin.
    pub(super) fn offsets_at(&self) -> usize {
        self.scales_at() + if self.is_halves() { 0 } else { 32 * self.groups() }
    }

    /// The byte that a code of one is in the matrix unit.
    pub(crate) fn unit(&self) -> f32 {
        if self.is_signs() || self.is_halves() { 1.0 } else { (1 << (8 - self.bits - self.low)) as f32 }
    }
}
