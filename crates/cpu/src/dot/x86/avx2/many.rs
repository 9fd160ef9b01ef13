//! Integer products on x86 with many tokens: rows unpacked once to 16 bits, tokens in the lanes of a vector.
//!
//! Each product of 16 or 32 columns is one exact integer per token; it is multiplied by its scale and added
//! to the sum of its place in the chunk of 256 columns. [`super::tiles`] sums in the same order, so that a
//! token's result is the same bits in both.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2, FMA and F16C (and the instruction set of `S` or
//! `W`), pointers that are valid for a whole vector, and as many rows, tokens and groups as it is given.

use std::arch::x86_64::*;

use crate::activations::token_tiles::{MAX_TILE_TOKENS, TokenTiles};
use crate::dot::x86::avx2::tiles::{GROUPS, Layout, chunk_bytes, codes_at};
use crate::dot::x86::avx2::wide::Wide;
use crate::dot::{PANEL, Rows, Target};
use crate::memory::lines::Line;

/// A chunk of 256 columns of [`PANEL`] rows.
#[repr(C, align(64))]
#[derive(Default)]
struct Chunk {
    codes: [[Line; GROUPS]; PANEL],
    /// One per group of 32 in the first eight, or one per group of 16.
    scales: [[f32; 16]; PANEL],
    offsets: [[f32; 16]; PANEL],
}

/// The workspace of a panel.
#[derive(Default)]
pub(crate) struct Panel {
    chunks: Vec<Chunk>,
    sums: Box<Sums>,
}

impl Panel {
    /// Unpacks rows; the rows after them are prefetched.
    #[inline(always)]
    unsafe fn unpack<L: Layout, W: Wide>(&mut self, rows: &Rows<'_>, cols: usize) {
        let row_bytes = cols / L::LEN * L::BYTES;
        let (all_groups, chunks) = (cols / 32, cols.div_ceil(32 * GROUPS));
        if self.chunks.len() < chunks {
            self.chunks.resize_with(chunks, Chunk::default);
        }
        for r in 0..rows.count {
            for (c, chunk) in self.chunks.iter_mut().enumerate().take(chunks) {
                let groups = GROUPS.min(all_groups - c * GROUPS);
                // SAFETY: the rows have these bytes by the contract, and a prefetch reads nothing, wherever
                // it points; the features of `W` are enabled.
                unsafe {
                    let weights = rows.blocks.as_ptr().add(r * row_bytes + c * chunk_bytes::<L>());
                    for line in (0..chunk_bytes::<L>()).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(PANEL * row_bytes + line).cast());
                    }
                    for (g, out) in chunk.codes[r].iter_mut().enumerate().take(groups) {
                        W::widen(codes_at::<W, L>(weights, g), out.0.as_mut_ptr());
                    }
                    let s = L::scales(weights, groups, rows.tail);
                    let (scales, offsets) = (&mut chunk.scales[r], &mut chunk.offsets[r]);
                    for i in 0..2 {
                        _mm256_storeu_ps(scales.as_mut_ptr().add(8 * i), s.scales[i]);
                        _mm256_storeu_ps(offsets.as_mut_ptr().add(8 * i), s.offsets[i]);
                    }
                }
            }
        }
    }
}

/// Sums of a panel with one tile of tokens: `[places][PANEL][lanes]`.
#[repr(C, align(64))]
#[derive(Default)]
struct Sums([[[f32; MAX_TILE_TOKENS]; PANEL]; 2 * GROUPS]);

/// Adds the products of some rows of one chunk with one tile of tokens, whose blocks start at `block`.
#[inline(always)]
unsafe fn add_chunk<L: Layout, W: Wide, const R: usize>(
    sums: &mut Sums,
    start: Option<*const f32>,
    chunk: &Chunk,
    first: usize,
    x: &TokenTiles<'_>,
    block: usize,
    groups: usize,
) {
    let parts = if L::HALVES { 2 } else { 1 };
    let pairs = 16 / parts;
    // SAFETY: `x` has `groups` blocks at `block` and `first + R` is at most PANEL by the contract; the
    // features of `W` are enabled.
    unsafe {
        for place in 0..groups * parts {
            let (g, at) = (place / parts, block * parts + place);
            let tokens = x
                .values
                .as_ptr()
                .cast::<i16>()
                .add((block + g) * 32 * W::LANES + place % parts * pairs * 2 * W::LANES);
            let mut products = [W::zero(); R];
            for k in 0..pairs {
                let x = W::load(tokens.add(k * 2 * W::LANES));
                for r in 0..R {
                    let codes = chunk.codes[first + r][g].0.as_ptr().add(2 * (place % parts * pairs + k));
                    products[r] = W::add_products(products[r], x, W::pair(codes));
                }
            }
            let scale = W::load_floats(x.scales.as_ptr().add((block + g) * W::LANES));
            let all = if L::HALVES { x.sums16 } else { x.sums32 };
            let shift = W::load_floats(all.as_ptr().add(at * W::LANES));
            for r in 0..R {
                let sum = sums.0[place][first + r].as_mut_ptr();
                let factor = W::mul(scale, W::every(&chunk.scales[first + r][place]));
                let mut y = W::mul_add(W::floats(products[r]), factor, W::load_floats(start.unwrap_or(sum)));
                if L::OFFSETS {
                    y = W::mul_add(W::every(&chunk.offsets[first + r][place]), shift, y);
                }
                W::store_floats(sum, y);
            }
        }
    }
}

/// Up to [`PANEL`] rows times all tokens.
///
/// # Safety
/// The features of `W` are enabled.
#[inline(always)]
pub(crate) unsafe fn panel<L: Layout, W: Wide>(
    rows: &Rows<'_>,
    x: &TokenTiles<'_>,
    workspace: &mut Panel,
    to: &Target<'_>,
) {
    let all_groups = x.cols / 32;
    assert!(rows.count <= PANEL && rows.blocks.len() == rows.count * (x.cols / L::LEN * L::BYTES));
    assert!(x.values.len() >= x.tokens.next_multiple_of(W::LANES) * all_groups);
    // SAFETY: sizes were checked above; the features of `W` are enabled.
    unsafe {
        workspace.unpack::<L, W>(rows, x.cols);
        let none = Line64([0.0f32; MAX_TILE_TOKENS]);
        if all_groups < GROUPS {
            *workspace.sums = Sums::default(); // places without columns
        }
        let (chunks, sums) = (&workspace.chunks, &mut *workspace.sums);
        for tile in 0..x.tokens.div_ceil(W::LANES) {
            for (c, chunk) in chunks.iter().enumerate().take(all_groups.div_ceil(GROUPS)) {
                let (block, groups) = (tile * all_groups + c * GROUPS, GROUPS.min(all_groups - c * GROUPS));
                // the first chunk starts the sums
                let start = (c == 0).then_some(none.0.as_ptr());
                // 16 sums hide the latency of a product; AVX2 has registers for eight
                if W::LANES == 16 && rows.count > 8 {
                    add_chunk::<L, W, 16>(sums, start, chunk, 0, x, block, groups);
                } else {
                    for first in (0..rows.count).step_by(8) {
                        add_chunk::<L, W, 8>(sums, start, chunk, first, x, block, groups);
                    }
                }
            }
            finish::<L, W>(sums, rows.count, tile, x.tokens, to);
        }
    }
}

/// Sums the places of a chunk as `horizontal_sum` does, and writes the results token by token.
#[inline(always)]
unsafe fn finish<L: Layout, W: Wide>(sums: &Sums, rows: usize, tile: usize, tokens: usize, to: &Target<'_>) {
    let mut results = Line64([[0.0f32; PANEL]; MAX_TILE_TOKENS]); // [lanes][PANEL]
    let mut columns = Line64([[0.0f32; MAX_TILE_TOKENS]; PANEL]);
    // SAFETY: all arrays have room for whole vectors; the features of `W` are enabled.
    unsafe {
        for r in 0..rows {
            let mut v = [W::load_floats(sums.0[0][r].as_ptr()); GROUPS];
            for (i, v) in v.iter_mut().enumerate() {
                *v = W::load_floats(sums.0[i][r].as_ptr());
                if L::HALVES {
                    *v = W::add(*v, W::load_floats(sums.0[i + GROUPS][r].as_ptr()));
                }
            }
            let even = W::add(W::add(v[0], v[4]), W::add(v[2], v[6]));
            let odd = W::add(W::add(v[1], v[5]), W::add(v[3], v[7]));
            W::store_floats(columns.0[r].as_mut_ptr(), W::add(even, odd));
        }
        for part in (0..PANEL).step_by(W::LANES) {
            W::transpose(
                columns.0[part].as_ptr(),
                MAX_TILE_TOKENS,
                results.0[0].as_mut_ptr().add(part),
                PANEL,
            );
        }
        let first = tile * W::LANES;
        for t in first..tokens.min(first + W::LANES) {
            to.write(t, results.0[t - first][..rows].iter());
        }
    }
}

#[repr(C, align(64))]
struct Line64<T>(T);
