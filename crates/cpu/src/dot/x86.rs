//! Integer dot products on x86: one loop for all formats, in AVX2 and in AVX-512 with VNNI.
//!
//! A format brings a [`Layout`]: how 32 of its codes come into a register. The loop multiplies them with int8
//! activations and scales each 32 (or 16) products at once. It equals `scalar::dot_codes` to rounding.

use std::arch::x86_64::*;

use half::bf16;
use tern_quant::{Q8_BLOCK, Quant};

use super::scalar::{self, Block};
use super::{LinearKernel, ROWS, Rows};
use crate::q8::{Q8, SUM_BLOCK};

/// Tokens that share one pass over a row.
const TOKENS: usize = 4;

/// What the two instruction sets do differently.
pub(super) trait Simd {
    /// Eight sums of four products, unsigned times signed.
    unsafe fn dot(u: __m256i, s: __m256i) -> __m256i;
    /// 32 bits to 32 bytes of 0x00 or 0xFF.
    unsafe fn spread(bits: u32) -> __m256i;
}

struct Avx2;
struct Avx512;

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

/// How the codes and scales of one block come into registers.
pub(super) trait Layout {
    /// Bytes of a block.
    const BYTES: usize;
    /// Weights of a block: a multiple of 32.
    const LEN: usize;
    /// Codes are signed; unsigned ones are below 128.
    const SIGNED: bool;
    /// Each 16 codes have their own scale, and not each 32.
    const HALVES: bool;
    /// There are offsets.
    const OFFSETS: bool;
    /// Codes `32 * i ..` of the block.
    unsafe fn codes<S: Simd>(block: *const u8, i: usize) -> __m256i;
    /// Scales and offsets of each 32 codes (each 16 where `HALVES`).
    unsafe fn scales(block: *const u8, scales: &mut [f32; 16], offsets: &mut [f32; 16]);
}

#[inline(always)]
pub(super) unsafe fn half_at(p: *const u8) -> f32 {
    // SAFETY: two bytes are readable there; called under F16C.
    unsafe {
        let bits = i32::from(p.cast::<u16>().read_unaligned());
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
    }
}

#[inline(always)]
unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: called under AVX2.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}

/// Adds the products of 32 codes with the activations of one token.
#[inline(always)]
unsafe fn accumulate<S: Simd, L: Layout>(
    acc: __m256,
    codes: __m256i,
    q: *const i8,
    (s0, s1): (f32, f32),
) -> __m256 {
    // SAFETY: 32 activations are readable at `q`; called under the features of `S`.
    unsafe {
        let q = _mm256_loadu_si256(q.cast());
        let sums = if L::SIGNED {
            S::dot(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes))
        } else {
            S::dot(codes, q)
        };
        let scale =
            if L::HALVES { _mm256_set_m128(_mm_set1_ps(s1), _mm_set1_ps(s0)) } else { _mm256_set1_ps(s0) };
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, acc)
    }
}

/// `R` rows against `N` tokens; `out` is `[R][stride]`.
#[inline(always)]
unsafe fn dot_tile<S: Simd, L: Layout, const R: usize, const N: usize>(
    rows: &[u8],
    x: &Q8<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let (mut scales, mut offsets) = ([[0.0f32; 16]; R], [[0.0f32; 16]; R]);
    let row_bytes = x.cols / L::LEN * L::BYTES;
    // SAFETY: `rows` holds `R` rows of whole blocks for `x.cols` weights, and `x` at least `N` rows, by the
    // caller's promise; called under the features of `S`.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; R];
        let mut shift = [[0.0f32; N]; R];
        for b in 0..x.cols / L::LEN {
            let block = |r: usize| rows.as_ptr().add(r * row_bytes + b * L::BYTES);
            for r in 0..R {
                L::scales(block(r), &mut scales[r], &mut offsets[r]);
            }
            for i in 0..L::LEN / 32 {
                let col = b * L::LEN + i * 32;
                for r in 0..R {
                    let codes = L::codes::<S>(block(r), i);
                    for n in 0..N {
                        let at = n * x.cols + col;
                        let d = *x.scales.get_unchecked(at / Q8_BLOCK);
                        let s = if L::HALVES {
                            (scales[r][2 * i] * d, scales[r][2 * i + 1] * d)
                        } else {
                            (scales[r][i] * d, 0.0)
                        };
                        acc[r][n] = accumulate::<S, L>(acc[r][n], codes, x.codes.as_ptr().add(at), s);
                        if L::OFFSETS {
                            let sums = x.sums.as_ptr().add(at / SUM_BLOCK);
                            shift[r][n] += if L::HALVES {
                                offsets[r][2 * i] * *sums + offsets[r][2 * i + 1] * *sums.add(1)
                            } else {
                                offsets[r][i] * (*sums + *sums.add(1))
                            };
                        }
                    }
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                out[r * stride + n] = horizontal_sum(acc[r][n]) + shift[r][n];
            }
        }
    }
}

/// Some rows against all tokens, in tiles of one row and some tokens, or some rows and one token.
#[inline(always)]
unsafe fn dot_rows<S: Simd, L: Layout>(rows: &Rows<'_>, x: &Q8<'_>, out: &mut [f32]) {
    let row_bytes = x.cols / L::LEN * L::BYTES;
    let tokens = out.len() / rows.count;
    assert!(rows.blocks.len() == rows.count * row_bytes && x.codes.len() >= tokens * x.cols);
    let whole = tokens / TOKENS * TOKENS;
    // SAFETY: sizes were checked above.
    unsafe {
        for r in 0..rows.count {
            let row = &rows.blocks[r * row_bytes..(r + 1) * row_bytes];
            for t in (0..whole).step_by(TOKENS) {
                dot_tile::<S, L, 1, TOKENS>(row, &x.skip(t), &mut out[r * tokens + t..], tokens);
            }
        }
        for t in whole..tokens {
            let x = x.skip(t);
            if rows.count == ROWS {
                dot_tile::<S, L, ROWS, 1>(rows.blocks, &x, &mut out[t..], tokens);
            } else {
                for r in 0..rows.count {
                    let row = &rows.blocks[r * row_bytes..(r + 1) * row_bytes];
                    dot_tile::<S, L, 1, 1>(row, &x, &mut out[r * tokens + t..], tokens);
                }
            }
        }
    }
}

/// A block that was unpacked by the format's own, general `unpack`.
struct General;

impl Layout for General {
    const BYTES: usize = 0;
    const LEN: usize = 0;
    const SIGNED: bool = true;
    const HALVES: bool = true;
    const OFFSETS: bool = true;
    #[inline(always)]
    unsafe fn codes<S: Simd>(codes: *const u8, i: usize) -> __m256i {
        // SAFETY: the block has more than `32 * i + 31` codes.
        unsafe { _mm256_loadu_si256(codes.add(32 * i).cast()) }
    }
    #[inline(always)]
    unsafe fn scales(_: *const u8, _: &mut [f32; 16], _: &mut [f32; 16]) {}
}

/// Rows of any format against all tokens: unpack a block, then use it for every token.
#[inline(always)]
unsafe fn dot_rows_general<S: Simd>(rows: &Rows<'_>, x: &Q8<'_>, out: &mut [f32]) {
    let (len, bytes) = (rows.quant.block_len, rows.quant.block_bytes());
    let tokens = out.len() / rows.count;
    assert!(rows.blocks.len() == x.cols / len * bytes * rows.count && x.codes.len() >= tokens * x.cols);
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
                        let codes = General::codes::<S>(block.codes.as_ptr().cast(), i);
                        for n in 0..out.len() {
                            let at = n * x.cols + b * len + i * 32;
                            let d = x.scales[at / Q8_BLOCK];
                            let s = (block.scales[2 * i] * d, block.scales[2 * i + 1] * d);
                            acc[n] = accumulate::<S, General>(acc[n], codes, x.codes.as_ptr().add(at), s);
                            let sums = &x.sums[at / SUM_BLOCK..][..2];
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

/// `sum(a * b)` with b in f16; two running vectors.
#[inline(always)]
unsafe fn dot_f16_body(a: &[f32], b: &[u16]) -> f32 {
    let n = a.len().min(b.len());
    let whole = n / 16 * 16;
    // SAFETY: all loads are below `whole`; called under AVX2, FMA and F16C.
    let sum = unsafe {
        let (mut s0, mut s1) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        for i in (0..whole).step_by(16) {
            let (b0, b1) = (b.as_ptr().add(i).cast(), b.as_ptr().add(i + 8).cast());
            s0 =
                _mm256_fmadd_ps(_mm256_loadu_ps(a.as_ptr().add(i)), _mm256_cvtph_ps(_mm_loadu_si128(b0)), s0);
            s1 = _mm256_fmadd_ps(
                _mm256_loadu_ps(a.as_ptr().add(i + 8)),
                _mm256_cvtph_ps(_mm_loadu_si128(b1)),
                s1,
            );
        }
        horizontal_sum(_mm256_add_ps(s0, s1))
    };
    sum + scalar::dot_f16(&a[whole..n], &b[whole..n])
}

/// F16 weights against f32 activations.
#[inline(always)]
unsafe fn f16_rows_body(rows: &Rows<'_>, x: &[f32], out: &mut [f32]) {
    let tokens = out.len() / rows.count;
    for (row, out) in rows.each().zip(out.chunks_exact_mut(tokens)) {
        let cols = row.len() / 2;
        let whole = cols / 16 * 16;
        for (y, x) in out.iter_mut().zip(x.chunks_exact(cols)) {
            // SAFETY: all loads are below `whole`; called under AVX2, FMA and F16C.
            let sum = unsafe {
                let (mut s0, mut s1) = (_mm256_setzero_ps(), _mm256_setzero_ps());
                for i in (0..whole).step_by(16) {
                    let (w, x) = (row.as_ptr().add(2 * i), x.as_ptr().add(i));
                    s0 = _mm256_fmadd_ps(_mm256_loadu_ps(x), _mm256_cvtph_ps(_mm_loadu_si128(w.cast())), s0);
                    let w = _mm256_cvtph_ps(_mm_loadu_si128(w.add(16).cast()));
                    s1 = _mm256_fmadd_ps(_mm256_loadu_ps(x.add(8)), w, s1);
                }
                horizontal_sum(_mm256_add_ps(s0, s1))
            };
            let rest = row[2 * whole..].as_chunks::<2>().0.iter().zip(&x[whole..]);
            *y = sum + rest.map(|(w, x)| half::f16::from_le_bytes(*w).to_f32() * x).sum::<f32>();
        }
    }
}

#[inline(always)]
unsafe fn add_scaled_f16_body(a: f32, x: &[u16], out: &mut [f32]) {
    let n = x.len().min(out.len());
    let whole = n / 8 * 8;
    // SAFETY: all loads and stores are below `whole`; called under AVX2, FMA and F16C.
    unsafe {
        let factor = _mm256_set1_ps(a);
        for i in (0..whole).step_by(8) {
            let v = _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(i).cast()));
            let o = out.as_mut_ptr().add(i);
            _mm256_storeu_ps(o, _mm256_fmadd_ps(factor, v, _mm256_loadu_ps(o)));
        }
    }
    scalar::add_scaled_f16(a, &x[whole..n], &mut out[whole..n]);
}

#[inline(always)]
unsafe fn store_f16_body(x: &[f32], out: &mut [u16]) {
    let n = x.len().min(out.len());
    let whole = n / 8 * 8;
    // SAFETY: all loads and stores are below `whole`; called under AVX2 and F16C.
    unsafe {
        for i in (0..whole).step_by(8) {
            let v = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr().add(i)));
            _mm_storeu_si128(out.as_mut_ptr().add(i).cast(), v);
        }
    }
    scalar::store_f16(&x[whole..n], &mut out[whole..n]);
}

/// The kernels of one instruction set: `(format name, layout)` pairs, and the general loop for the rest.
macro_rules! kernels {
    ($module:ident, $simd:ident, $features:literal) => {
        pub(crate) mod $module {
            use super::super::x86_layouts as layouts;
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn rows<L: Layout>(rows: &Rows<'_>, x: &Q8<'_>, out: &mut [f32]) {
                // SAFETY: the features are on.
                unsafe { dot_rows::<$simd, L>(rows, x, out) }
            }
            #[target_feature(enable = $features)]
            unsafe fn rows_general(rows: &Rows<'_>, x: &Q8<'_>, out: &mut [f32]) {
                // SAFETY: the features are on.
                unsafe { dot_rows_general::<$simd>(rows, x, out) }
            }
            #[target_feature(enable = $features)]
            unsafe fn f32_rows(rows: &Rows<'_>, x: &[f32], out: &mut [f32]) {
                scalar::float_rows::<4>(rows, x, out, f32::from_le_bytes);
            }
            #[target_feature(enable = $features)]
            unsafe fn bf16_rows(rows: &Rows<'_>, x: &[f32], out: &mut [f32]) {
                scalar::float_rows::<2>(rows, x, out, |b| bf16::from_le_bytes(b).to_f32());
            }
            #[target_feature(enable = $features)]
            unsafe fn f16_rows(rows: &Rows<'_>, x: &[f32], out: &mut [f32]) {
                // SAFETY: the features are on.
                unsafe { f16_rows_body(rows, x, out) }
            }

            fn q8<L: Layout>() -> LinearKernel {
                // SAFETY: these kernels are listed only where the features were detected.
                LinearKernel::Q8(|r, x, out| unsafe { rows::<L>(r, x, out) })
            }

            pub(crate) fn kernel(quant: &'static Quant) -> LinearKernel {
                // SAFETY: (all closures) these kernels are listed only where the features were detected.
                match quant.name {
                    // SAFETY: as above.
                    "F32" => LinearKernel::F32(|rows, x, out| unsafe { f32_rows(rows, x, out) }),
                    // SAFETY: as above.
                    "F16" => LinearKernel::F32(|rows, x, out| unsafe { f16_rows(rows, x, out) }),
                    // SAFETY: as above.
                    "BF16" => LinearKernel::F32(|rows, x, out| unsafe { bf16_rows(rows, x, out) }),
                    "Q1_0" => q8::<layouts::Q1_0>(),
                    "Q2_0" => q8::<layouts::Q2_0>(),
                    "PQ2_0" | "Q2_0_G128" => q8::<layouts::Pq2_0>(),
                    "TQ2_0" => q8::<layouts::Tq2_0>(),
                    "Q4_0" => q8::<layouts::Q4_0>(),
                    "Q4_1" => q8::<layouts::Q4_1>(),
                    "Q5_0" => q8::<layouts::Q5_0>(),
                    "Q5_1" => q8::<layouts::Q5_1>(),
                    "Q8_0" => q8::<layouts::Q8_0>(),
                    "Q2_K" => q8::<layouts::Q2K>(),
                    "Q3_K" => q8::<layouts::Q3K>(),
                    "Q4_K" => q8::<layouts::Q4K>(),
                    "Q5_K" => q8::<layouts::Q5K>(),
                    "Q6_K" => q8::<layouts::Q6K>(),
                    "IQ4_NL" => q8::<layouts::Iq4Nl>(),
                    "IQ4_XS" => q8::<layouts::Iq4Xs>(),
                    // SAFETY: as above.
                    _ => LinearKernel::Q8(|rows, x, out| unsafe { rows_general(rows, x, out) }),
                }
            }
        }
    };
}

kernels!(avx2, Avx2, "avx2,fma,f16c");
kernels!(avx512, Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

/// The half-precision kernels need no more than AVX2; both instruction sets use these.
pub(crate) mod halves {
    use super::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dot_wide(a: &[f32], b: &[u16]) -> f32 {
        // SAFETY: the features are on.
        unsafe { dot_f16_body(a, b) }
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_scaled_wide(a: f32, x: &[u16], out: &mut [f32]) {
        // SAFETY: the features are on.
        unsafe { add_scaled_f16_body(a, x, out) }
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn store_wide(x: &[f32], out: &mut [u16]) {
        // SAFETY: the features are on.
        unsafe { store_f16_body(x, out) }
    }

    pub(crate) fn dot_f16(a: &[f32], b: &[u16]) -> f32 {
        // SAFETY: these kernels are listed only where the features were detected.
        unsafe { dot_wide(a, b) }
    }
    pub(crate) fn add_scaled_f16(a: f32, x: &[u16], out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { add_scaled_wide(a, x, out) }
    }
    pub(crate) fn store_f16(x: &[f32], out: &mut [u16]) {
        // SAFETY: as above.
        unsafe { store_wide(x, out) }
    }
}
