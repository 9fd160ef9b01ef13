//! Codebook formats for AVX2: eight codes at a time are looked up by the format's own function.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use tern_quant::Codebook;

use crate::dot::x86::avx2::tiles::{Layout, Scales, Simd};

/// Blocks of a codebook format.
pub(crate) struct LookedUp<C>(PhantomData<C>);

impl<C: Codebook> Layout for LookedUp<C> {
    const BYTES: usize = C::QUANT.block_bytes();
    const LEN: usize = C::QUANT.block_len;
    const SIGNED: bool = true;
    const HALVES: bool = C::GROUP == 16;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, i: usize) -> __m256i {
        // SAFETY: the caller's block is whole; AVX2 is enabled.
        unsafe {
            let block = std::slice::from_raw_parts(block, Self::BYTES);
            let eight = |n: usize| C::eight(block, 4 * i + n) as i64;
            _mm256_setr_epi64x(eight(0), eight(1), eight(2), eight(3))
        }
    }

    #[inline(always)]
    unsafe fn scales(chunk: *const u8, _groups: usize, _tail: &[u8]) -> Scales {
        // SAFETY: a chunk is one block; AVX2 is enabled.
        unsafe {
            let block = std::slice::from_raw_parts(chunk, Self::BYTES);
            let (scale, mut scales) = (C::scale(block), [0.0f32; 16]);
            for (g, out) in scales.iter_mut().enumerate().take(Self::LEN / C::GROUP) {
                *out = scale * f32::from(C::multiple(block, g));
            }
            let eight = |i: usize| _mm256_loadu_ps(scales.as_ptr().add(8 * i));
            Scales { scales: [eight(0), eight(1)], offsets: [_mm256_setzero_ps(); 2] }
        }
    }
}
