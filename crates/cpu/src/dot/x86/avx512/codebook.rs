//! Codebook formats for AVX-512: a code is packed as the index of its value, since they have 6 or 16 values.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL, DQ and VNNI, and pointers that are
//! valid for what they name (a group's codes, a block's scales).

use std::arch::x86_64::*;
use std::marker::PhantomData;

use tern_quant::{Codebook, MAX_BLOCK};

use crate::dot::x86::avx512::packing::Packing;
use crate::dot::x86::avx512::scaling::Scaling;
use crate::dot::{PANEL, Rows};

/// Indices into the values of codes, three or four bits each.
pub(crate) struct Indexed<C>(PhantomData<C>);

/// Whether an index takes three bits, not four.
const fn is_short<C: Codebook>() -> bool {
    C::VALUES.len() <= 8
}

/// All values, and zeros after them.
const fn values<C: Codebook>() -> [i8; 16] {
    let (mut values, mut i) = ([0; 16], 0);
    while i < C::VALUES.len() {
        values[i] = C::VALUES[i];
        i += 1;
    }
    values
}

/// The index of each value, a byte.
const fn indices<C: Codebook>() -> [u8; 256] {
    let (mut indices, mut i) = ([0; 256], 0);
    while i < C::VALUES.len() {
        indices[C::VALUES[i] as u8 as usize] = i as u8;
        i += 1;
    }
    indices
}

impl<C: Codebook> Packing for Indexed<C> {
    const LEN: usize = MAX_BLOCK;
    const LOW: usize = if is_short::<C>() { 2 } else { 4 };
    const HIGH: usize = if is_short::<C>() { 1 } else { 0 };
    const EXCESS: Option<u32> = Some((-(C::VALUES[0] as i32)).ilog2() + 1);
    const TABLE: Option<[i8; 16]> = Some(values::<C>());
    type Scales = Multiples<C>;

    #[inline(always)]
    unsafe fn codes(_rows: &Rows<'_>, block: &[u8], out: &mut [u8; MAX_BLOCK]) {
        let indices = const { &indices::<C>() };
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *out = C::eight(block, i).to_le_bytes().map(|code| indices[usize::from(code)]);
        }
    }

    #[inline(always)]
    fn scales(_rows: &Rows<'_>, block: &[u8], row: usize, out: &mut [u8]) {
        out[4 * row..4 * row + 4].copy_from_slice(&C::scale(block).to_le_bytes());
        for g in 0..MAX_BLOCK / C::GROUP {
            out[(4 + g) * PANEL + row] = C::multiple(block, g);
        }
    }
}

/// An f32 per row, and a byte for each group.
pub(crate) struct Multiples<C>(PhantomData<C>);

impl<C: Codebook> Scaling for Multiples<C> {
    const BYTES: usize = (4 + MAX_BLOCK / C::GROUP) * PANEL;
    const HALVES: bool = C::GROUP == 16;
    const INTEGER_SCALES: bool = Self::HALVES;
    const TWO_DIGITS: bool = Self::HALVES;
    #[inline(always)]
    unsafe fn head(p: *const u8) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { (_mm512_loadu_ps(p.cast()), _mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn at(p: *const u8, head: (__m512, __m512), i: usize) -> (__m512, __m512) {
        // SAFETY: the contract of this function.
        unsafe { (_mm512_mul_ps(_mm512_cvtepi32_ps(Self::integer_scale(p, head, i).0), head.0), head.1) }
    }
    #[inline(always)]
    unsafe fn integer_scale(p: *const u8, head: (__m512, __m512), i: usize) -> (__m512i, __m512) {
        // SAFETY: the contract of this function.
        (unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.add((4 + i) * PANEL).cast())) }, head.1)
    }
}
