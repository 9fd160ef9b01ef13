//! The loops of the integer products on x86: a few rows of weights times a few tokens.
//!
//! A format has a [`Layout`]: how its codes are loaded into registers, and the scales of 256 weights. The
//! loop goes through chunks of 256 columns: the products of each group of 32 (or 16) columns are summed to
//! one exact integer, and the eight (or 16) groups of a chunk occupy the lanes of one vector, where scales
//! and offsets are applied. Lanes are summed at the end. Equals `scalar::dot_codes` to rounding.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2, FMA and F16C (and the instruction set of `S` or
//! `W`), pointers that are valid for a whole vector, and as many rows, tokens and groups as it is given.

use std::arch::x86_64::*;

use tern_quant::INT_BLOCK;

use crate::activations::quantized_rows::QuantizedRows;
use crate::dot::x86::floats::horizontal_sum;
use crate::dot::{ROWS, Rows};

/// Tokens that share a pass over a row.
const TOKENS: usize = 4;
/// Groups of 32 columns in a chunk.
pub(crate) const GROUPS: usize = 8;

/// Operations on 32 codes that differ between the two instruction sets.
pub(crate) trait Simd {
    /// Eight sums of four products, unsigned times signed.
    unsafe fn dot(u: __m256i, s: __m256i) -> __m256i;
    /// 32 bits to 32 bytes of 0x00 or 0xFF.
    unsafe fn spread(bits: u32) -> __m256i;
}

pub(crate) struct Avx2;
pub(crate) struct Avx512;

impl Simd for Avx2 {
    #[inline(always)]
    unsafe fn dot(u: __m256i, s: __m256i) -> __m256i {
        // SAFETY: AVX2 is enabled. Pairs stay below 2^15: codes are at most 128 and activations 127.
        unsafe { _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)) }
    }

    #[inline(always)]
    unsafe fn spread(bits: u32) -> __m256i {
        // SAFETY: AVX2 is enabled.
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
        // SAFETY: AVX-512 VL and VNNI are enabled.
        unsafe { _mm256_dpbusd_epi32(_mm256_setzero_si256(), u, s) }
    }

    #[inline(always)]
    unsafe fn spread(bits: u32) -> __m256i {
        // SAFETY: AVX-512 VL and BW are enabled.
        unsafe { _mm256_movm_epi8(bits) }
    }
}

/// Scales and offsets of a chunk: one per group of 32 in the first vector, or one per group of 16 in both.
pub(crate) struct Scales {
    pub(crate) scales: [__m256; 2],
    pub(crate) offsets: [__m256; 2],
}

/// How the codes and scales of a format are loaded into registers.
pub(crate) trait Layout {
    /// Bytes per block.
    const BYTES: usize;
    /// Weights per block: 32, 64, 128 or 256.
    const LEN: usize;
    /// Codes are signed; unsigned ones are below 128.
    const SIGNED: bool;
    /// A scale per 16 codes instead of per 32.
    const HALVES: bool;
    /// The format has offsets.
    const OFFSETS: bool = !Self::SIGNED;
    /// Codes `32 * i ..` of a block.
    unsafe fn codes<S: Simd>(block: *const u8, i: usize) -> __m256i;
    /// Scales of a chunk, of which `groups` groups of 32 exist, and of the tensor's
    /// tail. The rest must be zero.
    unsafe fn scales(chunk: *const u8, groups: usize, tail: &[u8]) -> Scales;
}

/// Codes `32 * group ..` of a chunk.
#[inline(always)]
pub(crate) unsafe fn codes_at<S: Simd, L: Layout + ?Sized>(chunk: *const u8, group: usize) -> __m256i {
    let each = L::LEN / 32;
    // SAFETY: the caller's chunk has these codes.
    unsafe { L::codes::<S>(chunk.add(group / each * L::BYTES), group % each) }
}

/// Bytes of a whole chunk.
pub(crate) const fn chunk_bytes<L: Layout>() -> usize {
    GROUPS * 32 / L::LEN * L::BYTES
}

/// All bits in the first `n` of eight lanes.
#[inline(always)]
unsafe fn first_lanes(n: usize) -> __m256i {
    // SAFETY: AVX2 is enabled.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// Scales and sums of one token's activations in one chunk: one value per group of 32 in the first vector, or
/// one per group of 16 in both.
#[derive(Clone, Copy)]
struct Chunk {
    scales: [__m256; 2],
    sums: [__m256; 2],
}

#[inline(always)]
unsafe fn chunk_of<L: Layout>(x: &QuantizedRows<'_>, token: usize, chunk: usize, groups: usize) -> Chunk {
    let at = token * (x.cols / INT_BLOCK) + chunk * GROUPS;
    // SAFETY: masks keep the loads inside the token's row; AVX2 is enabled.
    unsafe {
        let mask = first_lanes(groups);
        let scales = _mm256_maskload_ps(x.scales.as_ptr().add(at), mask);
        if L::HALVES {
            let sums = x.sums16.as_ptr().add(2 * at);
            let upper = first_lanes((2 * groups).saturating_sub(8));
            // the second pointer may lie past the row's end; the mask then loads nothing
            let sums = [
                _mm256_maskload_ps(sums, first_lanes(2 * groups)),
                _mm256_maskload_ps(sums.wrapping_add(8), upper),
            ];
            let pairs = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
            let low = _mm256_permutevar8x32_ps(scales, pairs);
            let high = _mm256_permutevar8x32_ps(scales, _mm256_add_epi32(pairs, _mm256_set1_epi32(4)));
            Chunk { scales: [low, high], sums }
        } else {
            let none = _mm256_setzero_ps();
            let sums = _mm256_maskload_ps(x.sums32.as_ptr().add(at), mask);
            Chunk { scales: [scales, none], sums: [sums, none] }
        }
    }
}

/// Some rows, and the tail of their tensor.
type Blocks<'a> = (&'a [u8], &'a [u8]);

/// One chunk of a tile: its first byte of weights, the distance between rows, and the tensor's tail.
struct Place<'a> {
    chunk: usize,
    weights: *const u8,
    row_bytes: usize,
    tail: &'a [u8],
}

impl<'a> Place<'a> {
    /// A chunk of the rows at `rows`; the same chunk of the rows after them is prefetched.
    #[inline(always)]
    fn new<L: Layout, const R: usize>((rows, tail): Blocks<'a>, cols: usize, chunk: usize) -> Place<'a> {
        let row_bytes = cols / L::LEN * L::BYTES;
        let weights = rows.as_ptr().wrapping_add(chunk * chunk_bytes::<L>());
        for line in (0..chunk_bytes::<L>()).step_by(64) {
            for r in R..2 * R {
                // SAFETY: a prefetch reads nothing, wherever it points.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(r * row_bytes + line).cast()) };
            }
        }
        Place { chunk, weights, row_bytes, tail }
    }
}

/// Sums all chunks of a tile. Whole chunks have a constant number of groups, so that their loops
/// unroll and their scales stay in registers. (A macro: a closure this large is not inlined, and
/// loses the vector features.)
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

/// Running sums of the places of a chunk, as in [`Scales`].
type Sums256<const R: usize, const N: usize> = [[[__m256; 2]; N]; R];

/// One chunk of `R` rows times `N` tokens with AVX2.
#[inline(always)]
unsafe fn chunk_256<L: Layout, const R: usize, const N: usize>(
    sums: &mut Sums256<R, N>,
    x: &QuantizedRows<'_>,
    at: Place<'_>,
    groups: usize,
) {
    // SAFETY: `at` has `R` rows of `groups` groups, and `x` at least `N` rows, by the contract; AVX2,
    // FMA and F16C are enabled.
    unsafe {
        let mut chunks = [chunk_of::<L>(x, 0, at.chunk, groups); N];
        for (n, c) in chunks.iter_mut().enumerate().skip(1) {
            *c = chunk_of::<L>(x, n, at.chunk, groups);
        }
        for r in 0..R {
            let weights = at.weights.add(r * at.row_bytes);
            let mut codes = [_mm256_setzero_si256(); GROUPS];
            for (g, codes) in codes.iter_mut().enumerate().take(groups) {
                *codes = codes_at::<Avx2, L>(weights, g);
            }
            let s = L::scales(weights, groups, at.tail);
            for n in 0..N {
                let mut p = [_mm256_setzero_si256(); GROUPS];
                for g in 0..groups {
                    let col = (at.chunk * GROUPS + g) * 32;
                    p[g] = products::<Avx2>(codes[g], x, n * x.cols + col, L::SIGNED);
                }
                // one sum per half of each group: [0, 2, 4, 6 | 1, 3, 5, 7], and so on
                let low = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
                let high = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
                let products = if L::HALVES {
                    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                    [_mm256_permutevar8x32_epi32(low, order), _mm256_permutevar8x32_epi32(high, order)]
                } else {
                    let (first, second) = (
                        _mm256_permute2x128_si256::<0x20>(low, high),
                        _mm256_permute2x128_si256::<0x31>(low, high),
                    );
                    [_mm256_add_epi32(first, second), _mm256_setzero_si256()]
                };
                for i in 0..if L::HALVES { 2 } else { 1 } {
                    let sum = &mut sums[r][n][i];
                    let factor = _mm256_mul_ps(s.scales[i], chunks[n].scales[i]);
                    *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[i]), factor, *sum);
                    if L::OFFSETS {
                        *sum = _mm256_fmadd_ps(s.offsets[i], chunks[n].sums[i], *sum);
                    }
                }
            }
        }
    }
}

/// Eight sums of four products of codes and activations from `at` on, both planes together.
#[inline(always)]
unsafe fn products<S: Simd>(codes: __m256i, x: &QuantizedRows<'_>, at: usize, signed: bool) -> __m256i {
    // SAFETY: 32 activations are readable at `at` by the contract; the features of `S` are enabled.
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

/// `R` rows times `N` tokens with AVX2; `out` is `[R][stride]`.
#[inline(always)]
unsafe fn tile_256<L: Layout, const R: usize, const N: usize>(
    rows: Blocks<'_>,
    x: &QuantizedRows<'_>,
    out: &mut [f32],
    stride: usize,
) {
    // SAFETY: sizes were checked by the caller; AVX2, FMA and F16C are enabled.
    unsafe {
        let mut sums: Sums256<R, N> = [[[_mm256_setzero_ps(); 2]; N]; R];
        add_chunks!(chunk_256, rows, x, sums);
        for r in 0..R {
            for n in 0..N {
                let [first, second] = sums[r][n];
                let all = if L::HALVES { _mm256_add_ps(first, second) } else { first };
                out[r * stride + n] = horizontal_sum(all);
            }
        }
    }
}

/// Some rows times all tokens: tiles of a few rows and [`TOKENS`] tokens, then of all rows and one token.
macro_rules! dot_rows {
    ($name:ident, $tile:ident, $rows:literal) => {
        /// # Safety
        /// The features of its tile are enabled.
        #[inline(always)]
        pub(crate) unsafe fn $name<L: Layout>(rows: &Rows<'_>, x: &QuantizedRows<'_>, out: &mut [f32]) {
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
                        $tile::<L, $rows, TOKENS>((part, rows.tail), &x, &mut out[r * tokens + t..], tokens);
                        r += $rows;
                    }
                    while r < rows.count {
                        let part = &rows.blocks[r * row_bytes..(r + 1) * row_bytes];
                        $tile::<L, 1, TOKENS>((part, rows.tail), &x, &mut out[r * tokens + t..], tokens);
                        r += 1;
                    }
                }
                for t in whole..tokens {
                    let x = x.skip(t);
                    let mut r = 0;
                    while rows.count - r >= ROWS {
                        let part = &rows.blocks[r * row_bytes..(r + ROWS) * row_bytes];
                        $tile::<L, ROWS, 1>((part, rows.tail), &x, &mut out[r * tokens + t..], tokens);
                        r += ROWS;
                    }
                    while r < rows.count {
                        let part = &rows.blocks[r * row_bytes..(r + 1) * row_bytes];
                        $tile::<L, 1, 1>((part, rows.tail), &x, &mut out[r * tokens + t..], tokens);
                        r += 1;
                    }
                }
            }
        }
    };
}

dot_rows!(dot_rows_256, tile_256, 1);
