//! Vectors as wide as a tile of tokens, in AVX2.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2, FMA and F16C (and the instruction set of `S` or
//! `W`), pointers that are valid for a whole vector, and as many rows, tokens and groups as it is given.

use std::arch::x86_64::*;

use crate::activations::token_tiles::Square;
use crate::dot::x86::avx2::tiles::{Avx2, Simd};

/// Vectors as wide as a tile of tokens.
pub(crate) trait Wide: Simd + Square {
    type Integers: Copy;
    type Floats: Copy;
    unsafe fn zero() -> Self::Integers;
    /// Two codes in every lane.
    unsafe fn pair(p: *const i16) -> Self::Integers;
    unsafe fn load(p: *const i16) -> Self::Integers;
    /// Adds the products of two pairs in each lane.
    unsafe fn add_products(sum: Self::Integers, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn floats(v: Self::Integers) -> Self::Floats;
    /// The same value in every lane.
    unsafe fn every(p: *const f32) -> Self::Floats;
    unsafe fn load_floats(p: *const f32) -> Self::Floats;
    unsafe fn store_floats(p: *mut f32, v: Self::Floats);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// 32 bytes to signed 16 bits.
    unsafe fn widen(codes: __m256i, out: *mut i16);
}

impl Wide for Avx2 {
    type Integers = __m256i;
    type Floats = __m256;
    instructions! {
        zero() -> __m256i = _mm256_setzero_si256();
        pair(p: *const i16) -> __m256i = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
        load(p: *const i16) -> __m256i = _mm256_loadu_si256(p.cast());
        add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i =
            _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        floats(v: __m256i) -> __m256 = _mm256_cvtepi32_ps(v);
        every(p: *const f32) -> __m256 = _mm256_set1_ps(*p);
        load_floats(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        store_floats(p: *mut f32, v: __m256) -> () = _mm256_storeu_ps(p, v);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        widen(codes: __m256i, out: *mut i16) -> () = {
            _mm256_storeu_si256(out.cast(), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes)));
            let upper = _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(codes));
            _mm256_storeu_si256(out.add(16).cast(), upper);
        };
    }
}

impl Square for Avx2 {
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the contract of this function.
        unsafe {
            let mut a = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                a[i] = _mm256_loadu_ps(from.add(i * from_stride));
            }
            let mut b = a;
            for i in 0..4 {
                b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
            }
            for i in 0..2 {
                for j in 0..2 {
                    let (x, y) = (_mm256_castps_pd(b[4 * i + j]), _mm256_castps_pd(b[4 * i + 2 + j]));
                    a[4 * i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
                    a[4 * i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
                }
            }
            for c in 0..4 {
                _mm256_storeu_ps(to.add(c * to_stride), _mm256_permute2f128_ps::<0x20>(a[c], a[4 + c]));
                _mm256_storeu_ps(to.add((4 + c) * to_stride), _mm256_permute2f128_ps::<0x31>(a[c], a[4 + c]));
            }
        }
    }
}
