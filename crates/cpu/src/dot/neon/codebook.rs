//! Codebook formats for NEON: eight codes at a time are looked up by the format's own function.

use std::arch::aarch64::*;
use std::marker::PhantomData;

use tern_quant::Codebook;

use super::layout::{Layout, Scales};

/// Blocks of a codebook format.
pub(crate) struct LookedUp<C>(PhantomData<C>);

impl<C: Codebook> Layout for LookedUp<C> {
    const BYTES: usize = C::QUANT.block_bytes();
    const LEN: usize = C::QUANT.block_len;
    const WIDE: bool = false;
    const HALVES: bool = C::GROUP == 16;

    #[inline(always)]
    unsafe fn codes(block: *const u8, i: usize) -> [uint8x16_t; 2] {
        // SAFETY: the caller's block is whole; every aarch64 has NEON.
        unsafe {
            let block = std::slice::from_raw_parts(block, Self::BYTES);
            let eight = |n: usize| vcreate_u8(C::eight(block, 4 * i + n));
            [vcombine_u8(eight(0), eight(1)), vcombine_u8(eight(2), eight(3))]
        }
    }

    #[inline(always)]
    unsafe fn scales(chunk: *const u8, _groups: usize, _tail: &[u8]) -> Scales {
        // SAFETY: a chunk is one block; every aarch64 has NEON.
        unsafe {
            let block = std::slice::from_raw_parts(chunk, Self::BYTES);
            let (scale, mut scales) = (C::scale(block), [0.0f32; 16]);
            for (g, out) in scales.iter_mut().enumerate().take(Self::LEN / C::GROUP) {
                *out = scale * f32::from(C::multiple(block, g));
            }
            let four = |i: usize| vld1q_f32(scales.as_ptr().add(4 * i));
            Scales { scales: [four(0), four(1), four(2), four(3)], offsets: [vdupq_n_f32(0.0); 4] }
        }
    }
}
