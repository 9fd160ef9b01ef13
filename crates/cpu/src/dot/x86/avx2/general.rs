//! Formats without a layout: unpacked to plain blocks of codes and scales, which have one.

use std::arch::x86_64::*;

use tern_quant::INT_BLOCK;

use crate::activations::quantized_rows::SUM_BLOCK;
use crate::dot::Rows;
use crate::dot::portable::scalar::Block;
use crate::dot::x86::avx2::tiles::{Layout, Scales, Simd};

/// 32 weights with a scale and an offset for each 16.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PlainBlock {
    scales: [f32; 2],
    offsets: [f32; 2],
    codes: [i8; INT_BLOCK],
}

/// Rows of [`PlainBlock`]s.
pub(crate) struct Plain;

impl Layout for Plain {
    const BYTES: usize = size_of::<PlainBlock>();
    const LEN: usize = INT_BLOCK;
    const SIGNED: bool = true;
    const HALVES: bool = true;
    const OFFSETS: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, _i: usize) -> __m256i {
        // SAFETY: the caller's block is whole; AVX2 is enabled.
        unsafe { _mm256_loadu_si256((*block.cast::<PlainBlock>()).codes.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn scales(chunk: *const u8, groups: usize, _tail: &[u8]) -> Scales {
        let (mut scales, mut offsets) = ([0.0f32; 16], [0.0f32; 16]);
        for g in 0..groups {
            // SAFETY: the caller's chunk has `groups` blocks.
            let block = unsafe { &*chunk.cast::<PlainBlock>().add(g) };
            scales[2 * g..2 * g + 2].copy_from_slice(&block.scales);
            offsets[2 * g..2 * g + 2].copy_from_slice(&block.offsets);
        }
        // SAFETY: both have 16 values; AVX2 is enabled.
        let two =
            |v: &[f32; 16]| unsafe { [_mm256_loadu_ps(v.as_ptr()), _mm256_loadu_ps(v.as_ptr().add(8))] };
        Scales { scales: two(&scales), offsets: two(&offsets) }
    }
}

/// Rows of any format as rows of [`Plain`].
pub(crate) fn unpack<'a>(rows: &Rows<'_>, cols: usize, workspace: &'a mut Vec<PlainBlock>) -> Rows<'a> {
    let (len, bytes) = (rows.quant.block_len, rows.quant.block_bytes());
    assert!(rows.blocks.len() == cols / len * bytes * rows.count);
    let mut block = Block::empty();
    workspace.clear();
    for raw in rows.blocks.chunks_exact(bytes) {
        block.fill(rows.quant, raw, rows.tail);
        let groups = block.scales.as_chunks::<2>().0.iter().zip(block.offsets.as_chunks::<2>().0);
        let codes = block.codes[..len].as_chunks::<INT_BLOCK>().0;
        workspace.extend(codes.iter().zip(groups).map(|(codes, (scales, offsets))| PlainBlock {
            scales: *scales,
            offsets: *offsets,
            codes: *codes,
        }));
    }
    const { assert!(INT_BLOCK == 2 * SUM_BLOCK) };
    // SAFETY: a plain block is 48 bytes without gaps.
    let blocks =
        unsafe { std::slice::from_raw_parts(workspace.as_ptr().cast(), size_of_val(workspace.as_slice())) };
    Rows { quant: rows.quant, count: rows.count, blocks, tail: &[] }
}
