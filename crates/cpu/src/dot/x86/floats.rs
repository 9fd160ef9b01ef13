//! Vectors of floats on x86, in AVX2 and in AVX-512, and halves to floats and back.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX2, FMA and F16C, those on
//! `__m512` also AVX-512 F and DQ.

use std::arch::x86_64::*;

use crate::dot::portable::scalar;
use crate::vectors::Vector;

#[inline(always)]
pub(crate) unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: AVX2 is enabled.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}

/// The sum of each vector's lanes.
#[inline(always)]
unsafe fn sums(each: [__m256; 4]) -> [f32; 4] {
    // SAFETY: AVX2 is enabled.
    unsafe {
        let pairs = (_mm256_hadd_ps(each[0], each[1]), _mm256_hadd_ps(each[2], each[3]));
        let all = _mm256_hadd_ps(pairs.0, pairs.1);
        let sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
        std::mem::transmute::<__m128, [f32; 4]>(sums)
    }
}

/// The sum of both halves.
#[inline(always)]
unsafe fn both(v: __m512) -> __m256 {
    // SAFETY: AVX-512 DQ is enabled.
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }
}

#[inline(always)]
unsafe fn store_f16_body(x: &[f32], out: &mut [u16]) {
    let n = x.len().min(out.len());
    let whole = n / 8 * 8;
    // SAFETY: all loads and stores are below `whole`; AVX2 and F16C are enabled.
    unsafe {
        for i in (0..whole).step_by(8) {
            let v = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr().add(i)));
            _mm_storeu_si128(out.as_mut_ptr().add(i).cast(), v);
        }
    }
    scalar::store_f16(&x[whole..n], &mut out[whole..n]);
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_wide(x: &[f32], out: &mut [u16]) {
    // SAFETY: the features are enabled.
    unsafe { store_f16_body(x, out) }
}

pub(crate) fn store_f16(x: &[f32], out: &mut [u16]) {
    // SAFETY: these kernels are listed only if the processor has the features.
    unsafe { store_wide(x, out) }
}

impl Vector for __m256 {
    const LEN: usize = 8;
    const ROWS: usize = 4;
    instructions! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        load(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        store(self: Self, p: *mut f32) -> () = _mm256_storeu_ps(p, self);
        halves(p: *const u16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        bf16(p: *const u16) -> __m256 =
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
        bytes(p: *const i8) -> __m256 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
        mul_add(self: Self, by: __m256, plus: __m256) -> __m256 = _mm256_fmadd_ps(self, by, plus);
        sums(each: [__m256; 4]) -> [f32; 4] = sums(each);
    }
    #[inline(always)]
    unsafe fn ask<T>(p: *const T) {
        // SAFETY: nothing is read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

impl Vector for __m512 {
    const LEN: usize = 16;
    const ROWS: usize = 8;
    instructions! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        store(self: Self, p: *mut f32) -> () = _mm512_storeu_ps(p, self);
        halves(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        bf16(p: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        bytes(p: *const i8) -> __m512 = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        mul_add(self: Self, by: __m512, plus: __m512) -> __m512 = _mm512_fmadd_ps(self, by, plus);
        sums(each: [__m512; 4]) -> [f32; 4] = sums([both(each[0]), both(each[1]), both(each[2]), both(each[3])]);
    }
    #[inline(always)]
    unsafe fn ask<T>(p: *const T) {
        // SAFETY: nothing is read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
