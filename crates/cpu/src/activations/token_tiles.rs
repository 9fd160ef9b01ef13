//! Quantized activations of many tokens: each lane of a vector holds one token of a tile.
//!
//! The numbers are those of [`crate::activations::quantized_rows`], both planes in one 16-bit integer. A
//! vector holds two neighbouring columns of every token of its tile, so that one instruction multiplies two
//! codes of a row with all tokens.

use std::ops::Range;

use tern_quant::INT_BLOCK;

use crate::activations::quantized_rows::{Rounding, SUM_BLOCK, largest, quantize_block};
use crate::memory::lines::{Line, Refused};
use crate::memory::shared::Shared;

/// Largest number of tokens per tile, and a multiple of every instruction set's.
pub(crate) const MAX_TILE_TOKENS: usize = 16;

/// A view of tiles of tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenTiles<'a> {
    pub(crate) tokens: usize,
    /// Columns per token; a multiple of 32.
    pub(crate) cols: usize,
    /// Bits of the low plane.
    pub(crate) low: u32,
    /// `[tiles, cols / 2, lanes, 2]`, or for the matrix unit in the order of [`Place`].
    pub(crate) values: &'a [Line],
    /// `[tiles, cols / 32, lanes]`
    pub(crate) scales: &'a [f32],
    /// Sum of 32 activations. `[tiles, cols / 32, lanes]`
    pub(crate) sums32: &'a [f32],
    /// Sum of 16 activations. `[tiles, cols / 16, lanes]`
    pub(crate) sums16: &'a [f32],
}

/// Memory for tiles of tokens: the same arrays.
pub(crate) struct TokenTilesBuffer {
    values: Shared<Line>,
    scales: Shared<f32>,
    sums32: Shared<f32>,
    sums16: Shared<f32>,
}

/// Some columns of a tile to write.
pub(crate) struct TokenTilesMut<'a> {
    values: &'a mut [Line],
    scales: &'a mut [f32],
    sums32: &'a mut [f32],
    sums16: &'a mut [f32],
}

impl TokenTilesBuffer {
    /// Memory for `values` activations of whole tiles.
    pub(crate) fn new(values: usize) -> Result<TokenTilesBuffer, Refused> {
        Ok(TokenTilesBuffer {
            values: Shared::new(values.div_ceil(32))?,
            scales: Shared::new(values.div_ceil(INT_BLOCK))?,
            sums32: Shared::new(values.div_ceil(INT_BLOCK))?,
            sums16: Shared::new(values.div_ceil(SUM_BLOCK))?,
        })
    }

    /// Bytes of memory for `values` activations.
    pub(crate) fn bytes(values: usize) -> usize {
        2 * values + 4 * (2 * values / INT_BLOCK + values / SUM_BLOCK)
    }

    /// # Safety
    /// No thread writes the first `tokens` tokens before the next barrier.
    pub(crate) unsafe fn view(&self, tokens: usize, cols: usize, low: u32) -> TokenTiles<'_> {
        let n = tokens.next_multiple_of(MAX_TILE_TOKENS) * cols;
        // SAFETY: the contract of this function.
        unsafe {
            TokenTiles {
                tokens,
                cols,
                low,
                values: self.values.get(0..n / 32),
                scales: self.scales.get(0..n / INT_BLOCK),
                sums32: self.sums32.get(0..n / INT_BLOCK),
                sums16: self.sums16.get(0..n / SUM_BLOCK),
            }
        }
    }

    /// Blocks of 32 columns, counted through all tiles of `lanes` tokens.
    ///
    /// # Safety
    /// No other thread accesses these blocks before the next barrier.
    pub(crate) unsafe fn part(&self, blocks: Range<usize>, lanes: usize) -> TokenTilesMut<'_> {
        let (first, end) = (blocks.start * lanes, blocks.end * lanes);
        // SAFETY: the contract of this function.
        unsafe {
            TokenTilesMut {
                values: self.values.get_mut(first..end),
                scales: self.scales.get_mut(first..end),
                sums32: self.sums32.get_mut(first..end),
                sums16: self.sums16.get_mut(2 * first..2 * end),
            }
        }
    }

    /// `len` columns from `col` on of one token, in tiles for the matrix unit.
    ///
    /// # Safety
    /// No other thread accesses these columns (`col` and `len` are multiples of 32) before the next barrier.
    pub(crate) unsafe fn row(
        &self,
        low: u32,
        cols: usize,
        row: usize,
        col: usize,
        len: usize,
    ) -> TileRow<'_> {
        let tiles = (row / MAX_TILE_TOKENS + 1) * MAX_TILE_TOKENS;
        assert!(col + len <= cols && tiles * cols <= self.values.len() * 32);
        TileRow { tile: self, row, cols, start: col, low }
    }
}

/// The place of a column in a tile for the matrix unit: `[cols / 64, plane, tokens, 64]` in bytes, and the
/// remaining columns as `[plane, tokens, 32]`; with a short low plane `[cols / 32, tokens, plane, 32]`, the
/// low plane as small integers with a scale to match.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Offset for the first token.
    pub(crate) at: usize,
    /// Distance between tokens.
    pub(crate) stride: usize,
    /// Distance from the high plane to the low one.
    pub(crate) low: usize,
}

impl Place {
    /// The place of column `col` of `cols`.
    #[inline(always)]
    pub(crate) fn of(col: usize, cols: usize, low: u32) -> Place {
        if low < 8 {
            return Place { at: col / 32 * 64 * MAX_TILE_TOKENS + col % 32, stride: 64, low: 32 };
        }
        let stride = if col / 64 * 64 + 64 <= cols { 64 } else { 32 };
        Place { at: col / 64 * 64 * 2 * MAX_TILE_TOKENS + col % 64, stride, low: MAX_TILE_TOKENS * stride }
    }
}

/// Some columns of one token to write, in tiles for the matrix unit.
pub(crate) struct TileRow<'a> {
    tile: &'a TokenTilesBuffer,
    row: usize,
    cols: usize,
    start: usize,
    low: u32,
}

impl TileRow<'_> {
    /// Pointers to both planes of 16 columns, `16 * i` after the first.
    ///
    /// # Safety
    /// The row has these columns.
    #[inline(always)]
    pub(crate) unsafe fn planes(&self, i: usize) -> (*mut i8, *mut i8) {
        let place = Place::of(self.start + i * SUM_BLOCK, self.cols, self.low);
        let tile = self.row / MAX_TILE_TOKENS * MAX_TILE_TOKENS * self.cols * 2;
        let at = tile + place.at + self.row % MAX_TILE_TOKENS * place.stride;
        let start = self.tile.values.pointer().cast::<i8>();
        // SAFETY: inside the room for this row, by the contract.
        unsafe { (start.add(at), start.add(at + place.low)) }
    }

    /// The sum of 16 columns, `16 * i` after the first.
    ///
    /// # Safety
    /// As for `planes`.
    #[inline(always)]
    pub(crate) unsafe fn set_sum16(&self, i: usize, sum: f32) {
        let half = self.start / SUM_BLOCK + i;
        // SAFETY: the contract of `TokenTilesBuffer::row`.
        unsafe { self.tile.sums16.set(self.lane(SUM_BLOCK, half), sum) };
    }

    /// The scale and the sum of 32 columns, `32 * i` after the first.
    ///
    /// # Safety
    /// As for `planes`.
    #[inline(always)]
    pub(crate) unsafe fn set_block(&self, i: usize, scale: f32, sum: f32) {
        let at = self.lane(INT_BLOCK, self.start / INT_BLOCK + i);
        // SAFETY: the contract of `TokenTilesBuffer::row`.
        unsafe {
            self.tile.scales.set(at, scale);
            self.tile.sums32.set(at, sum);
        }
    }

    /// This token's lane of entry `i`, with one entry per `columns` columns.
    #[inline(always)]
    fn lane(&self, each: usize, i: usize) -> usize {
        (self.row / MAX_TILE_TOKENS * (self.cols / each) + i) * MAX_TILE_TOKENS + self.row % MAX_TILE_TOKENS
    }
}

/// A square of 32-bit values that an instruction set transposes at once.
pub(crate) trait Square {
    /// Its side, and the tokens per tile.
    const LANES: usize;
    /// Transposes rows at `from`, `from_stride` values apart, to columns at `to`.
    ///
    /// # Safety
    /// All rows are readable and writable, and the processor has the instruction set.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
}

/// Quantizes columns from `start` on of a tile's tokens, whose rows in `x` are `width` wide.
///
/// # Safety
/// The processor has the instruction set of `S`.
#[inline(always)]
pub(crate) unsafe fn quantize_tile<S: Square>(
    x: &[f32],
    width: usize,
    rounding: Rounding,
    start: usize,
    out: TokenTilesMut<'_>,
) {
    let lanes = S::LANES;
    let blocks = out.values.chunks_exact_mut(lanes).zip(out.scales.chunks_exact_mut(lanes));
    let sums = out.sums32.chunks_exact_mut(lanes).zip(out.sums16.chunks_exact_mut(2 * lanes));
    let mut rows = [Line::default(); MAX_TILE_TOKENS];
    for (b, ((values, scales), (sums32, sums16))) in blocks.zip(sums).enumerate() {
        for (t, row) in x.chunks_exact(width).enumerate().take(lanes) {
            let col = start + b * INT_BLOCK;
            let Some(x) = row[col..].first_chunk() else { return };
            let (mut high, mut low) = ([0; INT_BLOCK], [0; INT_BLOCK]);
            let shared = largest(&row[col / rounding.span * rounding.span..][..rounding.span]);
            let block = quantize_block(shared, rounding, x, &mut high, &mut low);
            (scales[t], sums32[t]) = (block.scale, block.sum32);
            (sums16[t], sums16[lanes + t]) = (block.sum16[0], block.sum16[1]);
            for i in 0..INT_BLOCK {
                // arbitrary for values that are not finite
                rows[t].0[i] = (256 * i16::from(high[i])).wrapping_add(low[i].into());
            }
        }
        // from `[tokens, 16 pairs]` to `[16 pairs, tokens]`
        let (from, to) = (rows.as_ptr().cast::<f32>(), values.as_mut_ptr().cast::<f32>());
        for part in (0..16).step_by(lanes) {
            // SAFETY: `rows` has `lanes` rows of 16 pairs, and `values` as many.
            unsafe { S::transpose(from.add(part), 16, to.add(part * lanes), lanes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activations::quantized_rows::{QuantizedRowsBuffer, quantize};

    struct Plain;
    impl Square for Plain {
        const LANES: usize = 8;
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            for (i, j) in (0..64).map(|i| (i / 8, i % 8)) {
                // SAFETY: the contract of this function.
                unsafe { *to.add(i * to_stride + j) = *from.add(j * from_stride + i) };
            }
        }
    }

    #[test]
    fn tiles_hold_the_numbers_of_the_planes() {
        let (tokens, cols, rounding) = (8, 96, Rounding { span: 32, low: 8 });
        let x = tern_graph::Random::new(5).normals(tokens * cols, 1.0);
        let (planes, tiles) =
            (QuantizedRowsBuffer::new(tokens * cols).unwrap(), TokenTilesBuffer::new(16 * cols).unwrap());
        // SAFETY: one thread, and `Plain` needs no features.
        let (planes, tiles) = unsafe {
            quantize(&x, rounding, planes.part(tokens * cols, 0, 0, tokens * cols));
            quantize_tile::<Plain>(&x, cols, rounding, 0, tiles.part(0..1, 8));
            quantize_tile::<Plain>(&x, cols, rounding, 32, tiles.part(1..3, 8));
            (planes.view(tokens, cols, 8), tiles.view(tokens, cols, 8))
        };
        let values: Vec<i16> = tiles.values.iter().flat_map(|l| l.0).collect();
        for (t, col) in (0..tokens * cols).map(|i| (i / cols, i % cols)) {
            let (at, group) = (t * cols + col, col / 32);
            let want = 256 * i16::from(planes.high[at]) + i16::from(planes.low[at]);
            assert_eq!(values[(col / 2 * 8 + t) * 2 + col % 2], want);
            assert_eq!(tiles.scales[group * 8 + t], planes.scales[at / 32]);
            assert_eq!(tiles.sums32[group * 8 + t], planes.sums32[at / 32]);
            assert_eq!(tiles.sums16[col / 16 * 8 + t], planes.sums16[at / 16]);
        }
    }
}
