//! Vectors of floats on x86, in AVX2 and in AVX-512, and halves to floats and back.

use std::arch::x86_64::*;

use super::floats::{Floats, ROWS};
use super::scalar;

#[inline(always)]
pub(super) unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: called under AVX2.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}

/// One line for each of the methods that are an instruction or two.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty = $call:expr;)*) => {
        $(#[inline(always)]
        unsafe fn $name($($arg: $type),*) -> $out {
            // SAFETY: the caller's pointers are good for a vector; called under the features of the vector.
            unsafe { $call }
        })*
    };
}

/// The sum of each one's lanes.
#[inline(always)]
unsafe fn sums(each: [__m256; ROWS]) -> [f32; ROWS] {
    // SAFETY: called under AVX2.
    unsafe {
        let pairs = (_mm256_hadd_ps(each[0], each[1]), _mm256_hadd_ps(each[2], each[3]));
        let all = _mm256_hadd_ps(pairs.0, pairs.1);
        let sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
        std::mem::transmute::<__m128, [f32; ROWS]>(sums)
    }
}

impl Floats for __m256 {
    const LANES: usize = 8;
    instructions! {
        zero() -> __m256 = _mm256_setzero_ps();
        load(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        load_f16(p: *const u16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        load_bf16(p: *const u16) -> __m256 =
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
        store(v: __m256, p: *mut f32) -> () = _mm256_storeu_ps(p, v);
        add_product(sum: __m256, a: __m256, b: __m256) -> __m256 = _mm256_fmadd_ps(a, b, sum);
        sums(each: [__m256; ROWS]) -> [f32; ROWS] = sums(each);
        prefetch(p: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}

impl Floats for __m512 {
    const LANES: usize = 16;
    instructions! {
        zero() -> __m512 = _mm512_setzero_ps();
        load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        load_f16(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        load_bf16(p: *const u16) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        store(v: __m512, p: *mut f32) -> () = _mm512_storeu_ps(p, v);
        add_product(sum: __m512, a: __m512, b: __m512) -> __m512 = _mm512_fmadd_ps(a, b, sum);
        sums(each: [__m512; ROWS]) -> [f32; ROWS] = sums([
            halves(each[0]), halves(each[1]), halves(each[2]), halves(each[3]),
        ]);
        prefetch(p: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}

/// The sum of both halves.
#[inline(always)]
unsafe fn halves(v: __m512) -> __m256 {
    // SAFETY: called under AVX-512 DQ.
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }
}

#[inline(always)]
unsafe fn load_f16_body(x: &[u16], out: &mut [f32]) {
    let n = x.len().min(out.len());
    let whole = n / 8 * 8;
    // SAFETY: all loads and stores are below `whole`; called under AVX2 and F16C.
    unsafe {
        for i in (0..whole).step_by(8) {
            let v = _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(i).cast()));
            _mm256_storeu_ps(out.as_mut_ptr().add(i), v);
        }
    }
    scalar::load_f16(&x[whole..n], &mut out[whole..n]);
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

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_wide(x: &[u16], out: &mut [f32]) {
    // SAFETY: the features are on.
    unsafe { load_f16_body(x, out) }
}
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_wide(x: &[f32], out: &mut [u16]) {
    // SAFETY: the features are on.
    unsafe { store_f16_body(x, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_bytes_wide(x: &[i8], out: &mut [f32]) {
    scalar::load_i8(x, out);
}

pub(crate) fn load_i8(x: &[i8], out: &mut [f32]) {
    // SAFETY: these kernels are listed only where the features were detected.
    unsafe { load_bytes_wide(x, out) }
}
pub(crate) fn load_f16(x: &[u16], out: &mut [f32]) {
    // SAFETY: these kernels are listed only where the features were detected.
    unsafe { load_wide(x, out) }
}
pub(crate) fn store_f16(x: &[f32], out: &mut [u16]) {
    // SAFETY: as above.
    unsafe { store_wide(x, out) }
}
