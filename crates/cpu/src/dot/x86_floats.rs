//! Half-precision products on x86: attention over f16 pages, and F16 weights. They need no more than AVX2.

use std::arch::x86_64::*;

use super::{Rows, scalar};

#[inline(always)]
pub(super) unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: called under AVX2.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}

/// F16 weights against f32 activations.
#[inline(always)]
pub(super) unsafe fn f16_rows(rows: &Rows<'_>, x: &[f32], out: &mut [f32]) {
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
