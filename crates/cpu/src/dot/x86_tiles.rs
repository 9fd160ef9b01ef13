//! The loops of the integer products on x86: a few rows of weights against a few tokens.
//!
//! A format brings a [`Layout`]: how its codes come into registers, and the scales of 256 weights. The loop works
//! through chunks of 256 columns: scales of weights and activations are multiplied once a chunk, offsets are
//! added once a chunk, and each 32 (or 64) products take one scale out of a register. Equals
//! `scalar::dot_codes` to rounding.

use std::arch::x86_64::*;

use tern_quant::INT_BLOCK;

use super::scalar::Block;
use super::x86_floats::horizontal_sum;
use super::{ROWS, Rows};
use crate::ints::{Ints, SUM_BLOCK};

/// Tokens that share a pass over a row.
const TOKENS: usize = 4;
/// Groups of 32 columns in a chunk.
const GROUPS: usize = 8;

/// What the two instruction sets do differently with 32 codes.
pub(super) trait Simd {
    /// Eight sums of four products, unsigned times signed.
    unsafe fn dot(u: __m256i, s: __m256i) -> __m256i;
    /// 32 bits to 32 bytes of 0x00 or 0xFF.
    unsafe fn spread(bits: u32) -> __m256i;
}

pub(super) struct Avx2;
pub(super) struct Avx512;

impl Simd for Avx2 {
    #[inline(always)]
    unsafe fn dot(u: __m256i, s: __m256i) -> __m256i {
        // SAFETY: called under AVX2. Pairs stay below 2^15: codes are at most 128 and activations 127.
        unsafe { _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)) }
    }

    #[inline(always)]
    unsafe fn spread(bits: u32) -> __m256i {
        // SAFETY: called under AVX2.
        unsafe {
            let bytes = _mm256_shuffle_epi8(
                _mm256_set1_epi32(bits as i32),
                _mm256_setr_epi8(
                    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3,
                    3, 3,
                ),
            );
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
        }
    }
}

impl Simd for Avx512 {
    #[inline(always)]
    unsafe fn dot(u: __m256i, s: __m256i) -> __m256i {
        // SAFETY: called under AVX-512 VL and VNNI.
        unsafe { _mm256_dpbusd_epi32(_mm256_setzero_si256(), u, s) }
    }

    #[inline(always)]
    unsafe fn spread(bits: u32) -> __m256i {
        // SAFETY: called under AVX-512 VL and BW.
        unsafe { _mm256_movm_epi8(bits) }
    }
}

/// Scales and offsets of a chunk: one a group of 32 in the first vector, or one a group of 16 in both.
pub(super) struct Scales {
    pub(super) scales: [__m256; 2],
    pub(super) offsets: [__m256; 2],
}

/// How the codes and scales of a format come into registers.
pub(super) trait Layout {
    /// Bytes of a block.
    const BYTES: usize;
    /// Weights of a block: 32, 64, 128 or 256.
    const LEN: usize;
    /// Codes are signed; unsigned ones are below 128.
    const SIGNED: bool;
    /// Each 16 codes have their own scale, and not each 32.
    const HALVES: bool;
    /// Codes `32 * i ..` of a block.
    unsafe fn codes<S: Simd>(block: *const u8, i: usize) -> __m256i;
    /// Codes `64 * i ..` of a chunk.
    #[inline(always)]
    unsafe fn codes64(chunk: *const u8, i: usize) -> __m512i {
        // SAFETY: the caller's chunk has these codes; called under AVX-512.
        unsafe {
            let low = codes_at::<Avx512, Self>(chunk, 2 * i);
            let high = codes_at::<Avx512, Self>(chunk, 2 * i + 1);
            _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)
        }
    }
    /// Scales of a chunk, of which `groups` groups of 32 are there. The rest must be zero.
    unsafe fn scales(chunk: *const u8, groups: usize) -> Scales;
}

/// Codes `32 * group ..` of a chunk.
#[inline(always)]
unsafe fn codes_at<S: Simd, L: Layout + ?Sized>(chunk: *const u8, group: usize) -> __m256i {
    let each = L::LEN / 32;
    // SAFETY: the caller's chunk has these codes.
    unsafe { L::codes::<S>(chunk.add(group / each * L::BYTES), group % each) }
}

/// All bits in the first `n` of eight lanes.
#[inline(always)]
unsafe fn first_lanes(n: usize) -> __m256i {
    // SAFETY: called under AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// The activations of one token in one chunk.
struct Chunk {
    /// One a group.
    scales: __m256,
    /// One a group of 32 in the first, or one a group of 16 in both.
    sums: [__m256; 2],
}

#[inline(always)]
unsafe fn chunk_of<L: Layout>(x: &Ints<'_>, token: usize, chunk: usize, groups: usize) -> Chunk {
    let at = token * (x.cols / INT_BLOCK) + chunk * GROUPS;
    // SAFETY: masks keep the loads inside the token's row; called under AVX2.
    unsafe {
        let mask = first_lanes(groups);
        let scales = _mm256_maskload_ps(x.scales.as_ptr().add(at), mask);
        let sums = if L::HALVES {
            let sums = x.sums16.as_ptr().add(2 * at);
            let upper = first_lanes((2 * groups).saturating_sub(8));
            // the second pointer may lie past the row's end, where nothing is loaded
            [
                _mm256_maskload_ps(sums, first_lanes(2 * groups)),
                _mm256_maskload_ps(sums.wrapping_add(8), upper),
            ]
        } else {
            [_mm256_maskload_ps(x.sums32.as_ptr().add(at), mask), _mm256_setzero_ps()]
        };
        Chunk { scales, sums }
    }
}

/// Sums in the making: products in `A`, offsets apart.
struct Sums<A, const R: usize, const N: usize> {
    products: [[A; N]; R],
    offsets: [[__m256; N]; R],
}

/// Where one chunk of a tile is: the weights' first byte there, and the distance from row to row.
struct Place {
    chunk: usize,
    weights: *const u8,
    row_bytes: usize,
}

impl Place {
    /// A chunk of the rows at `rows`; the same chunk of the rows after them is asked for ahead of time.
    #[inline(always)]
    fn new<L: Layout, const R: usize>(rows: &[u8], cols: usize, chunk: usize) -> Place {
        let row_bytes = cols / L::LEN * L::BYTES;
        let chunk_bytes = GROUPS * 32 / L::LEN * L::BYTES;
        let weights = rows.as_ptr().wrapping_add(chunk * chunk_bytes);
        for line in (0..chunk_bytes).step_by(64) {
            for r in R..2 * R {
                // SAFETY: a prefetch reads nothing, wherever it points.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(r * row_bytes + line).cast()) };
            }
        }
        Place { chunk, weights, row_bytes }
    }
}

/// Adds up all chunks of a tile. Whole chunks come with a constant number of groups, so that their loops unroll and
/// their scales stay in registers. (A macro: a closure this large is not inlined, and loses the vector features.)
macro_rules! add_chunks {
    ($chunk:ident, $rows:ident, $x:ident, $sums:ident) => {
        let all_groups = $x.cols / INT_BLOCK;
        for chunk in 0..all_groups / GROUPS {
            $chunk::<L, R, N>(&mut $sums, $x, Place::new::<L, R>($rows, $x.cols, chunk), GROUPS);
        }
        if !all_groups.is_multiple_of(GROUPS) {
            let last = Place::new::<L, R>($rows, $x.cols, all_groups / GROUPS);
            $chunk::<L, R, N>(&mut $sums, $x, last, all_groups % GROUPS);
        }
    };
}

/// One chunk of `R` rows against `N` tokens with AVX2.
#[inline(always)]
unsafe fn chunk_256<L: Layout, const R: usize, const N: usize>(
    sums: &mut Sums<__m256, R, N>,
    x: &Ints<'_>,
    at: Place,
    groups: usize,
) {
    // SAFETY: `at` has `R` rows of `groups` groups, and `x` at least `N` rows, by the caller's promise; called
    // under AVX2, FMA and F16C.
    unsafe {
        let chunks: [Chunk; N] = std::array::from_fn(|n| chunk_of::<L>(x, n, at.chunk, groups));
        let mut factors = [[[_mm256_setzero_ps(); 2]; N]; R];
        for r in 0..R {
            let s = L::scales(at.weights.add(r * at.row_bytes), groups);
            for n in 0..N {
                let c = &chunks[n];
                let shift = &mut sums.offsets[r][n];
                *shift = _mm256_fmadd_ps(s.offsets[0], c.sums[0], *shift);
                factors[r][n][0] = _mm256_mul_ps(s.scales[0], c.scales);
                if L::HALVES {
                    let pairs = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                    let low = _mm256_permutevar8x32_ps(c.scales, pairs);
                    let high =
                        _mm256_permutevar8x32_ps(c.scales, _mm256_add_epi32(pairs, _mm256_set1_epi32(4)));
                    factors[r][n] = [_mm256_mul_ps(s.scales[0], low), _mm256_mul_ps(s.scales[1], high)];
                    *shift = _mm256_fmadd_ps(s.offsets[1], c.sums[1], *shift);
                }
            }
        }
        for g in 0..groups {
            let col = (at.chunk * GROUPS + g) * 32;
            for r in 0..R {
                let codes = codes_at::<Avx2, L>(at.weights.add(r * at.row_bytes), g);
                for n in 0..N {
                    let products = products::<Avx2>(codes, x, n * x.cols + col, L::SIGNED);
                    let factor = if L::HALVES {
                        let lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
                        let lanes = _mm256_add_epi32(lanes, _mm256_set1_epi32((2 * g % 8) as i32));
                        _mm256_permutevar8x32_ps(factors[r][n][g / 4], lanes)
                    } else {
                        _mm256_permutevar8x32_ps(factors[r][n][0], _mm256_set1_epi32(g as i32))
                    };
                    let sum = &mut sums.products[r][n];
                    *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), factor, *sum);
                }
            }
        }
    }
}

/// Eight sums of four products of codes and activations from `at` on, both planes together.
#[inline(always)]
unsafe fn products<S: Simd>(codes: __m256i, x: &Ints<'_>, at: usize, signed: bool) -> __m256i {
    // SAFETY: 32 activations are readable at `at` by the caller's promise; called under the features of `S`.
    unsafe {
        let mut high = _mm256_loadu_si256(x.high.as_ptr().add(at).cast());
        let mut low = _mm256_loadu_si256(x.low.as_ptr().add(at).cast());
        let mut codes = codes;
        if signed {
            high = _mm256_sign_epi8(high, codes);
            low = _mm256_sign_epi8(low, codes);
            codes = _mm256_abs_epi8(codes);
        }
        _mm256_add_epi32(_mm256_slli_epi32::<8>(S::dot(codes, high)), S::dot(codes, low))
    }
}

/// One chunk of `R` rows against `N` tokens with AVX-512.
#[inline(always)]
unsafe fn chunk_512<L: Layout, const R: usize, const N: usize>(
    sums: &mut Sums<__m512, R, N>,
    x: &Ints<'_>,
    at: Place,
    groups: usize,
) {
    // SAFETY: as for `chunk_256`; called under AVX-512 BW, VL, DQ and VNNI too.
    unsafe {
        let chunks: [Chunk; N] = std::array::from_fn(|n| chunk_of::<L>(x, n, at.chunk, groups));
        let mut factors = [[_mm512_setzero_ps(); N]; R];
        for r in 0..R {
            let mut s = L::scales(at.weights.add(r * at.row_bytes), groups);
            if L::SIGNED {
                // signed codes become unsigned by adding 128, which the offset takes away again
                s.offsets = s.scales.map(|s| _mm256_mul_ps(s, _mm256_set1_ps(-128.0)));
            }
            for n in 0..N {
                let d = _mm512_castps256_ps512(chunks[n].scales);
                let shift = &mut sums.offsets[r][n];
                *shift = _mm256_fmadd_ps(s.offsets[0], chunks[n].sums[0], *shift);
                factors[r][n] = if L::HALVES {
                    let pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
                    let both = _mm512_insertf32x8(_mm512_castps256_ps512(s.scales[0]), s.scales[1], 1);
                    *shift = _mm256_fmadd_ps(s.offsets[1], chunks[n].sums[1], *shift);
                    _mm512_mul_ps(both, _mm512_permutexvar_ps(pairs, d))
                } else {
                    _mm512_mul_ps(_mm512_castps256_ps512(s.scales[0]), d)
                };
            }
        }
        for j in 0..groups.div_ceil(2) {
            let col = (at.chunk * GROUPS + 2 * j) * 32;
            // the last group of a row may stand alone
            let there: __mmask64 = if 2 * j + 1 < groups { !0 } else { 0xFFFF_FFFF };
            let lanes = if L::HALVES {
                let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                _mm512_add_epi32(lanes, _mm512_set1_epi32(4 * j as i32))
            } else {
                let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
                _mm512_add_epi32(lanes, _mm512_set1_epi32(2 * j as i32))
            };
            for r in 0..R {
                let weights = at.weights.add(r * at.row_bytes);
                let mut codes = if there == !0 {
                    L::codes64(weights, j)
                } else {
                    _mm512_zextsi256_si512(codes_at::<Avx512, L>(weights, 2 * j))
                };
                if L::SIGNED {
                    codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
                }
                for n in 0..N {
                    let from = n * x.cols + col;
                    let high = _mm512_maskz_loadu_epi8(there, x.high.as_ptr().add(from));
                    let low = _mm512_maskz_loadu_epi8(there, x.low.as_ptr().add(from));
                    let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, high);
                    let dots = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(dots), codes, low);
                    let factor = _mm512_permutexvar_ps(lanes, factors[r][n]);
                    let sum = &mut sums.products[r][n];
                    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), factor, *sum);
                }
            }
        }
    }
}

/// `R` rows against `N` tokens with AVX2; `out` is `[R][stride]`.
#[inline(always)]
unsafe fn tile_256<L: Layout, const R: usize, const N: usize>(
    rows: &[u8],
    x: &Ints<'_>,
    out: &mut [f32],
    stride: usize,
) {
    // SAFETY: sizes were checked by the caller; called under AVX2, FMA and F16C.
    unsafe {
        let zero = [[_mm256_setzero_ps(); N]; R];
        let mut sums = Sums { products: zero, offsets: zero };
        add_chunks!(chunk_256, rows, x, sums);
        for r in 0..R {
            for n in 0..N {
                out[r * stride + n] = horizontal_sum(_mm256_add_ps(sums.products[r][n], sums.offsets[r][n]));
            }
        }
    }
}

/// `R` rows against `N` tokens with AVX-512; `out` is `[R][stride]`.
#[inline(always)]
unsafe fn tile_512<L: Layout, const R: usize, const N: usize>(
    rows: &[u8],
    x: &Ints<'_>,
    out: &mut [f32],
    stride: usize,
) {
    // SAFETY: as for `tile_256`; called under AVX-512 BW, VL, DQ and VNNI too.
    unsafe {
        let mut sums =
            Sums { products: [[_mm512_setzero_ps(); N]; R], offsets: [[_mm256_setzero_ps(); N]; R] };
        add_chunks!(chunk_512, rows, x, sums);
        for r in 0..R {
            for n in 0..N {
                let all = sums.products[r][n];
                let halves = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
                out[r * stride + n] = horizontal_sum(_mm256_add_ps(halves, sums.offsets[r][n]));
            }
        }
    }
}

/// Some rows against all tokens: tiles of a few rows and [`TOKENS`] tokens, then of all rows and one token.
macro_rules! dot_rows {
    ($name:ident, $tile:ident, $rows:literal) => {
        /// # Safety
        /// Called under the features of its tile.
        #[inline(always)]
        pub(super) unsafe fn $name<L: Layout>(rows: &Rows<'_>, x: &Ints<'_>, out: &mut [f32]) {
            let row_bytes = x.cols / L::LEN * L::BYTES;
            let tokens = out.len() / rows.count;
            assert!(rows.blocks.len() == rows.count * row_bytes && x.high.len() >= tokens * x.cols);
            let whole = tokens / TOKENS * TOKENS;
            // SAFETY: sizes were checked above.
            unsafe {
                for t in (0..whole).step_by(TOKENS) {
                    let x = x.skip(t);
                    let mut r = 0;
                    while rows.count - r >= $rows {
                        let part = &rows.blocks[r * row_bytes..(r + $rows) * row_bytes];
                        $tile::<L, $rows, TOKENS>(part, &x, &mut out[r * tokens + t..], tokens);
                        r += $rows;
                    }
                    while r < rows.count {
                        let part = &rows.blocks[r * row_bytes..(r + 1) * row_bytes];
                        $tile::<L, 1, TOKENS>(part, &x, &mut out[r * tokens + t..], tokens);
                        r += 1;
                    }
                }
                for t in whole..tokens {
                    let x = x.skip(t);
                    let mut r = 0;
                    while rows.count - r >= ROWS {
                        let part = &rows.blocks[r * row_bytes..(r + ROWS) * row_bytes];
                        $tile::<L, ROWS, 1>(part, &x, &mut out[r * tokens + t..], tokens);
                        r += ROWS;
                    }
                    while r < rows.count {
                        let part = &rows.blocks[r * row_bytes..(r + 1) * row_bytes];
                        $tile::<L, 1, 1>(part, &x, &mut out[r * tokens + t..], tokens);
                        r += 1;
                    }
                }
            }
        }
    };
}

dot_rows!(dot_rows_256, tile_256, 1);
dot_rows!(dot_rows_512, tile_512, 2);

/// Rows of any format against all tokens: unpack a block, then use it for every token.
#[inline(always)]
pub(super) unsafe fn general<S: Simd>(rows: &Rows<'_>, x: &Ints<'_>, out: &mut [f32]) {
    let (len, bytes) = (rows.quant.block_len, rows.quant.block_bytes());
    let tokens = out.len() / rows.count;
    assert!(rows.blocks.len() == x.cols / len * bytes * rows.count && x.high.len() >= tokens * x.cols);
    let mut block = Block::empty();
    for (row, out) in rows.each().zip(out.chunks_exact_mut(tokens)) {
        for (part, out) in out.chunks_mut(32).enumerate() {
            let x = x.skip(part * 32);
            // SAFETY: sizes were checked above; called under the features of `S`.
            unsafe {
                let mut acc = [_mm256_setzero_ps(); 32];
                let mut shift = [0.0f32; 32];
                for (b, raw) in row.chunks_exact(bytes).enumerate() {
                    block.fill(rows.quant, raw, rows.tail);
                    for i in 0..len / 32 {
                        let codes = _mm256_loadu_si256(block.codes.as_ptr().add(32 * i).cast());
                        for n in 0..out.len() {
                            let at = n * x.cols + b * len + i * 32;
                            let d = x.scales[at / INT_BLOCK];
                            let (s0, s1) = (block.scales[2 * i] * d, block.scales[2 * i + 1] * d);
                            let factor = _mm256_set_m128(_mm_set1_ps(s1), _mm_set1_ps(s0));
                            let products = products::<S>(codes, &x, at, true);
                            acc[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), factor, acc[n]);
                            let sums = &x.sums16[at / SUM_BLOCK..][..2];
                            shift[n] += block.offsets[2 * i] * sums[0] + block.offsets[2 * i + 1] * sums[1];
                        }
                    }
                }
                for (n, y) in out.iter_mut().enumerate() {
                    *y = horizontal_sum(acc[n]) + shift[n];
                }
            }
        }
    }
}
