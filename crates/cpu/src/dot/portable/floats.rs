//! Products of float weights with f32 activations, in vectors of any instruction set: four rows
//! by some tokens at a time.
//!
//! The lanes of a vector hold columns of a row. Each result has one vector of sums, which accumulates the
//! products of a row's columns in order and is reduced at the end: the same bits in a tile of any size.
//! Equals `scalar::float_rows` to rounding.
//!
//! # Safety
//! Every `unsafe` function of this module requires that the processor has the instruction set of
//! its vector, that pointers are valid for the given number of values, and that no other thread
//! accesses the rows of `to`.

use half::{bf16, f16};

use crate::dot::{Rows, Target};
use crate::memory::lines::Line;
use crate::vectors::Vector;

/// Rows per tile.
const ROWS: usize = 4;
/// Rows that share a pass over the activations of many tokens; a multiple of [`ROWS`].
const MOST_ROWS: usize = 32;
/// Columns per block: those of a tile's rows and tokens fit the L1 cache.
const BLOCK: usize = 512;
/// Bytes of a row that are prefetched.
const AHEAD: usize = 1024;

/// How a format's values become floats.
pub(crate) trait Format {
    type Value: Copy;
    /// Whether they are f32 already.
    const PLAIN: bool = false;
    unsafe fn load<V: Vector>(p: *const Self::Value) -> V;
    fn value(value: Self::Value) -> f32;
}

pub(crate) struct F32;
impl Format for F32 {
    type Value = f32;
    const PLAIN: bool = true;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const f32) -> V {
        // SAFETY: the contract of this function.
        unsafe { V::load(p) }
    }
    #[inline(always)]
    fn value(value: f32) -> f32 {
        value
    }
}

pub(crate) struct F16;
impl Format for F16 {
    type Value = u16;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u16) -> V {
        // SAFETY: the contract of this function.
        unsafe { V::halves(p) }
    }
    #[inline(always)]
    fn value(value: u16) -> f32 {
        f16::from_bits(value).to_f32()
    }
}

pub(crate) struct Bf16;
impl Format for Bf16 {
    type Value = u16;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u16) -> V {
        // SAFETY: the contract of this function.
        unsafe { V::bf16(p) }
    }
    #[inline(always)]
    fn value(value: u16) -> f32 {
        bf16::from_bits(value).to_f32()
    }
}

/// A thread's workspace.
#[derive(Default)]
pub(crate) struct FloatsWorkspace {
    /// A block of rows as floats, or rows copied to fill whole tiles.
    pub(crate) rows: Vec<Line>,
    /// Sums of all tokens with these rows.
    pub(crate) sums: Vec<Line>,
}

/// Some rows times all tokens, at most `N` tokens at a time.
///
/// # Safety
/// The features of `V` are enabled; no other thread accesses the rows of `to`.
#[inline(always)]
pub(crate) unsafe fn dot<V: Vector, F: Format, const N: usize>(
    rows: &Rows<'_>,
    x: &[f32],
    workspace: &mut FloatsWorkspace,
    to: &Target<'_>,
) {
    let row_bytes = rows.blocks.len() / rows.count;
    let cols = row_bytes / size_of::<F::Value>();
    let tokens = x.len() / cols;
    assert!(rows.blocks.len() == rows.count * cols * size_of::<F::Value>());
    let whole = Part { cols, from: 0, len: cols, count: rows.count, x, sums: std::ptr::null_mut() };
    // SAFETY: rows and tokens have `cols` values each.
    unsafe {
        if tokens <= 2 * N {
            for r in (0..rows.count).step_by(ROWS) {
                let part = Part { count: ROWS.min(rows.count - r), ..whole };
                part.all::<V, F, N>(rows.blocks.as_ptr().add(r * row_bytes).cast(), cols, &to.skip(r));
            }
            return;
        }
        let lines = |floats: usize| floats.div_ceil(size_of::<Line>() / 4);
        // the last tile may extend past the last token
        workspace.sums.resize(lines(MOST_ROWS * (tokens + N) * V::LEN), Line::default());
        workspace.rows.resize(lines(MOST_ROWS * BLOCK), Line::default());
        let (sums, floats) = (workspace.sums.as_mut_ptr().cast(), workspace.rows.as_mut_ptr().cast::<f32>());
        for r in (0..rows.count).step_by(MOST_ROWS) {
            let count = MOST_ROWS.min(rows.count - r);
            for from in (0..cols).step_by(BLOCK) {
                let len = BLOCK.min(cols - from);
                let part = Part { from, len, count, sums, ..whole };
                let block = rows.blocks.as_ptr().add(r * row_bytes).cast::<F::Value>().add(from);
                if F::PLAIN {
                    part.all::<V, F, N>(block, cols, &to.skip(r));
                    continue;
                }
                for i in 0..count {
                    decode::<V, F>(block.add(i * cols), floats.add(i * BLOCK), len);
                }
                part.all::<V, F32, N>(floats, BLOCK, &to.skip(r));
            }
        }
    }
}

/// `len` values as floats.
#[inline(always)]
unsafe fn decode<V: Vector, F: Format>(from: *const F::Value, to: *mut f32, len: usize) {
    let whole = len / V::LEN * V::LEN;
    // SAFETY: the contract: `len` values at both.
    unsafe {
        for i in (0..whole).step_by(V::LEN) {
            F::load::<V>(from.add(i)).store(to.add(i));
        }
        for i in whole..len {
            *to.add(i) = F::value(from.add(i).read_unaligned());
        }
    }
}

/// Some columns of some rows, times all tokens.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// Columns of the whole matrix.
    cols: usize,
    from: usize,
    len: usize,
    /// Rows.
    count: usize,
    x: &'a [f32],
    /// Sums between two blocks of columns.
    sums: *mut f32,
}

impl Part<'_> {
    /// All tiles of the rows at `weights`, which are `stride` values apart.
    #[inline(always)]
    unsafe fn all<V: Vector, F: Format, const N: usize>(
        self,
        weights: *const F::Value,
        stride: usize,
        to: &Target<'_>,
    ) {
        let tokens = self.x.len() / self.cols;
        // SAFETY: the contract of this function.
        unsafe {
            // tokens that are read again for each four rows stay in the cache
            let mut t = 0;
            while t < tokens {
                let width = match tokens - t {
                    1 => 1,
                    2 => 2,
                    3 | 4 if N > 4 => 4,
                    _ => N,
                };
                for r in (0..self.count).step_by(ROWS) {
                    match width {
                        1 => self.tile::<V, F, 1>(weights, stride, r, t, to),
                        2 => self.tile::<V, F, 2>(weights, stride, r, t, to),
                        4 => self.tile::<V, F, 4>(weights, stride, r, t, to),
                        _ => self.tile::<V, F, N>(weights, stride, r, t, to),
                    }
                }
                t += width;
            }
        }
    }

    /// Four rows by `N` tokens; tokens past the end repeat the last one.
    #[inline(always)]
    unsafe fn tile<V: Vector, F: Format, const N: usize>(
        &self,
        weights: *const F::Value,
        stride: usize,
        row: usize,
        token: usize,
        to: &Target<'_>,
    ) {
        let tokens = self.x.len() / self.cols;
        // SAFETY: the contract of this function.
        unsafe {
            let (mut w, mut x) = ([weights; ROWS], [self.x.as_ptr(); N]);
            for (r, w) in w.iter_mut().enumerate() {
                *w = w.add((row + r).min(self.count - 1) * stride);
            }
            for (n, x) in x.iter_mut().enumerate() {
                *x = x.add((token + n).min(tokens - 1) * self.cols + self.from);
            }
            let kept = self.sums.wrapping_add((token * self.count.div_ceil(ROWS) * ROWS + row * N) * V::LEN);
            let mut sums = [[V::splat(0.0); N]; ROWS];
            if self.from > 0 {
                for r in 0..ROWS {
                    for n in 0..N {
                        sums[r][n] = V::load(kept.add((r * N + n) * V::LEN));
                    }
                }
            }
            let sums = add::<V, F, N>(sums, w, x, self.len);
            if self.from + self.len < self.cols {
                for r in 0..ROWS {
                    for n in 0..N {
                        sums[r][n].store(kept.add((r * N + n) * V::LEN));
                    }
                }
                return;
            }
            let to = to.skip(row);
            // a constant bound: with a variable one, sums would not stay in registers
            for n in 0..N {
                let results = V::sums([sums[0][n], sums[1][n], sums[2][n], sums[3][n]]);
                if token + n < tokens {
                    to.write(token + n, results[..ROWS.min(self.count - row)].iter());
                }
            }
        }
    }
}

/// Adds the products of `len` columns.
#[inline(always)]
unsafe fn add<V: Vector, F: Format, const N: usize>(
    mut sums: [[V; N]; ROWS],
    w: [*const F::Value; ROWS],
    x: [*const f32; N],
    len: usize,
) -> [[V; N]; ROWS] {
    let whole = len / V::LEN * V::LEN;
    // SAFETY: the contract: `len` values at each.
    unsafe {
        for i in (0..whole).step_by(V::LEN) {
            let mut near = [V::splat(0.0); N];
            for n in 0..N {
                near[n] = V::load(x[n].add(i));
            }
            for r in 0..ROWS {
                if N == 1 {
                    V::ask(w[r].add(i).cast::<u8>().wrapping_add(AHEAD));
                }
                let w = F::load::<V>(w[r].add(i));
                for n in 0..N {
                    sums[r][n] = w.mul_add(near[n], sums[r][n]);
                }
            }
        }
        if whole < len {
            for r in 0..ROWS {
                let w = rest::<V, F>(w[r].add(whole), len - whole);
                for n in 0..N {
                    sums[r][n] = w.mul_add(rest::<V, F32>(x[n].add(whole), len - whole), sums[r][n]);
                }
            }
        }
    }
    sums
}

/// The last columns, which do not fill a vector.
#[inline(always)]
unsafe fn rest<V: Vector, F: Format>(from: *const F::Value, len: usize) -> V {
    let mut floats = [0.0; 16];
    // SAFETY: the contract: `len` values, fewer than a vector has.
    unsafe {
        for (i, float) in floats.iter_mut().enumerate().take(len) {
            *float = F::value(from.add(i).read_unaligned());
        }
        V::load(floats.as_ptr())
    }
}
