//! Products of BF16 weights with AMX: up to 64 rows by 16 tokens at a time.
//!
//! Weights are used unchanged. An activation is the sum of two bf16, which keep 17 of its bits; the products of both are
//! added to the same sum, 32 columns at a time: the same bits for any number of rows and tokens. Equals
//! `scalar::float_rows` to rounding.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL, DQ and VNNI and a working matrix unit
//! ([`super::probe`]), pointers that are valid for what they name, and that no other thread accesses the rows of `to`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use crate::dot::portable::floats::FloatsWorkspace;
use crate::dot::x86::amx::probe::{configure, release};
use crate::dot::{PANEL, PANELS, Rows, Target};
use crate::memory::lines::Line;

/// Columns per product.
const DEPTH: usize = 32;
/// Tokens per tile.
const TOKENS: usize = 16;
/// Bytes of a row that are prefetched.
const AHEAD: usize = 512;
/// Tokens up to which rows are read in place; for more they are first copied into the order in which they are read.
const FEW: usize = 2 * TOKENS;
/// Products in sequence: the activations of a tile stay in the L1 cache for all rows, rows in the L2 cache.
const CHUNK: usize = 16;

/// One instruction for each of some tiles.
macro_rules! tiles {
    ($($line:literal),*; $($name:ident = $value:expr),*) => {
        asm!($($line),* $(, $name = in(reg) $value)*, options(nostack, preserves_flags))
    };
}

/// Whether rows are a whole number of products.
pub(crate) fn suits(cols: usize) -> bool {
    cols.is_multiple_of(DEPTH)
}

/// Some rows times all tokens.
///
/// # Safety
/// AVX-512 BW is enabled, and [`crate::dot::x86::amx::probe::works_with_bf16`] is true; no other thread accesses the
/// rows of `to`.
#[inline(always)]
pub(crate) unsafe fn dot(rows: &Rows<'_>, x: &[f32], workspace: &mut FloatsWorkspace, to: &Target<'_>) {
    let row_bytes = rows.blocks.len() / rows.count;
    let (cols, count) = (row_bytes / 2, rows.count.div_ceil(PANEL));
    let (tokens, blocks) = (x.len() / cols, cols / DEPTH);
    assert!(suits(cols) && rows.blocks.len() == rows.count * row_bytes && x.len() == tokens * cols);
    // one token alone is one column of pairs instead of sixteen
    let width = if tokens == 1 { 1 } else { TOKENS };
    let each = blocks * 2 * width;
    // SAFETY: all sizes were checked or made here; the features are enabled.
    unsafe {
        if !workspace.has_x {
            workspace.x.resize(tokens.div_ceil(TOKENS) * each, Line::default());
            for (x, out) in x.chunks(TOKENS * cols).zip(workspace.x.chunks_exact_mut(each)) {
                split(x, cols, width, out);
            }
            workspace.has_x = true;
        }
        let (sums, bytes) = ((16, 4 * width as u16), (16, 64));
        configure([sums, sums, sums, sums, bytes, bytes, sums, sums]);
        workspace.sums.resize(tokens.div_ceil(TOKENS) * count * TOKENS, Line::default()); // [tiles, panels, rows, tokens]
        let copied = tokens > FEW || !rows.count.is_multiple_of(PANEL);
        let chunk = if copied { CHUNK } else { blocks };
        // few streams at once if the loop is bound by memory
        let most = if width == 1 { 1 } else { PANELS };
        for from in (0..blocks).step_by(chunk) {
            let part = from..blocks.min(from + chunk);
            if copied {
                copy(rows, part.clone(), &mut workspace.rows);
            }
            for (tile, x) in workspace.x.chunks_exact(each).enumerate() {
                let x = (x[from * 2 * width..].as_ptr(), width);
                for first in (0..count).step_by(PANELS) {
                    let group = PANELS.min(count - first);
                    let mut panel = 0;
                    while panel < group {
                        let weights = if copied {
                            let lines = first * part.len() * PANEL + panel * PANEL;
                            Weights {
                                at: workspace.rows[lines..].as_ptr().cast(),
                                row: 64,
                                panel: 1024,
                                block: group * 1024,
                            }
                        } else {
                            let at =
                                rows.blocks[(first + panel) * PANEL * row_bytes..].as_ptr().add(from * 64);
                            Weights { at, row: row_bytes, panel: PANEL * row_bytes, block: 64 }
                        };
                        let sums = workspace.sums[(tile * count + first + panel) * TOKENS..].as_mut_ptr();
                        panel += match most.min(group - panel) {
                            1 => panels::<1>(weights, x, part.clone(), sums),
                            2 | 3 => panels::<2>(weights, x, part.clone(), sums),
                            _ => panels::<PANELS>(weights, x, part.clone(), sums),
                        };
                    }
                }
            }
        }
        release();
        for (tile, sums) in workspace.sums.chunks_exact_mut(count * TOKENS).enumerate() {
            for (panel, sums) in sums.chunks_exact_mut(TOKENS).enumerate() {
                let (to, there) = (to.skip(panel * PANEL), PANEL.min(rows.count - panel * PANEL));
                let sums = sums.as_mut_ptr();
                if width > 1 {
                    let mut lanes = [_mm512_setzero_si512(); 16];
                    for (i, lanes) in lanes.iter_mut().enumerate() {
                        *lanes = _mm512_load_si512(sums.add(i).cast());
                    }
                    store_all(transposed(lanes), sums);
                }
                for (t, token) in (tile * TOKENS..tokens).take(TOKENS).enumerate() {
                    let results = &*sums.add(t).cast::<[f32; PANEL]>();
                    to.write(token, results[..there].iter());
                }
            }
        }
    }
}

/// Some blocks of all rows, in the order in which they are read: `[group of panels][block][panel][row]`.
#[inline(always)]
unsafe fn copy(rows: &Rows<'_>, blocks: Range<usize>, out: &mut Vec<Line>) {
    let count = rows.count.div_ceil(PANEL);
    out.resize(count * blocks.len() * PANEL, Line::default());
    for row in 0..count * PANEL {
        let (first, panel) = (row / PANEL / PANELS * PANELS, row / PANEL % PANELS);
        let group = PANELS.min(count - first);
        let from =
            rows.blocks.as_ptr().wrapping_add(row * (rows.blocks.len() / rows.count) + blocks.start * 64);
        for block in 0..blocks.len() {
            let at = first * blocks.len() * PANEL + (block * group + panel) * PANEL + row % PANEL;
            // SAFETY: below `count`, the row has these blocks; AVX-512 is enabled.
            let line = unsafe {
                if row < rows.count {
                    _mm512_loadu_si512(from.add(block * 64).cast())
                } else {
                    _mm512_setzero_si512()
                }
            };
            // SAFETY: a whole line.
            unsafe { _mm512_store_si512(out[at].0.as_mut_ptr().cast(), line) };
        }
    }
}

/// Layout of weights: bytes between rows, between panels and between blocks.
#[derive(Clone, Copy)]
struct Weights {
    at: *const u8,
    row: usize,
    panel: usize,
    block: usize,
}

/// Some blocks of `M` panels of 16 rows times a tile of tokens; returns `M`.
#[inline(always)]
unsafe fn panels<const M: usize>(
    weights: Weights,
    (x, width): (*const Line, usize),
    blocks: Range<usize>,
    sums: *mut Line,
) -> usize {
    let line = 4 * width;
    let sums = [0, 1, 2, 3].map(|i: usize| sums.wrapping_add(i * TOKENS));
    // SAFETY: the contract of this function.
    unsafe {
        if blocks.start == 0 {
            tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3";);
        } else {
            tiles!("tileloadd tmm0, [{a} + {line}*1]"; a = sums[0], line = line);
            if M > 1 {
                tiles!("tileloadd tmm1, [{a} + {line}*1]"; a = sums[1], line = line);
            }
            if M > 2 {
                tiles!("tileloadd tmm2, [{a} + {line}*1]", "tileloadd tmm3, [{b} + {line}*1]";
                    a = sums[2], b = sums[3], line = line);
            }
        }
        for block in 0..blocks.len() {
            let w = weights.at.add(block * weights.block);
            let x = x.add(block * 2 * width);
            if weights.block < weights.row {
                for r in 0..PANEL * M {
                    // to the L2 cache: rows often share sets of the L1 cache
                    _mm_prefetch::<_MM_HINT_T1>(w.wrapping_add(r * weights.row + AHEAD).cast());
                }
            }
            tiles!("tileloadd tmm6, [{high} + {line}*1]", "tileloadd tmm7, [{low} + {line}*1]";
                high = x, low = x.add(width), line = line);
            let row = weights.row;
            if M == 1 {
                tiles!("tileloadd tmm4, [{a} + {row}*1]", "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm0, tmm4, tmm7";
                    a = w, row = row);
            } else {
                tiles!(
                    "tileloadd tmm4, [{a} + {row}*1]", "tileloadd tmm5, [{b} + {row}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm5, tmm6",
                    "tdpbf16ps tmm0, tmm4, tmm7", "tdpbf16ps tmm1, tmm5, tmm7";
                    a = w, b = w.add(weights.panel), row = row);
            }
            if M > 2 {
                tiles!(
                    "tileloadd tmm4, [{a} + {row}*1]", "tileloadd tmm5, [{b} + {row}*1]",
                    "tdpbf16ps tmm2, tmm4, tmm6", "tdpbf16ps tmm3, tmm5, tmm6",
                    "tdpbf16ps tmm2, tmm4, tmm7", "tdpbf16ps tmm3, tmm5, tmm7";
                    a = w.add(2 * weights.panel), b = w.add(3 * weights.panel), row = row);
            }
        }
        tiles!("tilestored [{a} + {line}*1], tmm0"; a = sums[0], line = line);
        if M > 1 {
            tiles!("tilestored [{a} + {line}*1], tmm1"; a = sums[1], line = line);
        }
        if M > 2 {
            tiles!("tilestored [{a} + {line}*1], tmm2", "tilestored [{b} + {line}*1], tmm3";
                a = sums[2], b = sums[3], line = line);
        }
    }
    M
}

/// Up to 16 tokens as pairs of bf16, high parts then low parts of 32 columns after 32: `[16 pairs][width]` each.
#[inline(always)]
unsafe fn split(x: &[f32], cols: usize, width: usize, out: &mut [Line]) {
    // SAFETY: the contract; AVX-512 BW is enabled.
    unsafe {
        for (block, out) in out.chunks_exact_mut(2 * width).enumerate() {
            let (mut high, mut low) = ([_mm512_setzero_si512(); 16], [_mm512_setzero_si512(); 16]);
            for (t, x) in x.chunks_exact(cols).enumerate() {
                (high[t], low[t]) = parts(x.as_ptr().add(block * DEPTH));
            }
            if width == 1 {
                _mm512_store_si512(out.as_mut_ptr().cast(), high[0]);
                _mm512_store_si512(out.as_mut_ptr().add(1).cast(), low[0]);
                continue;
            }
            store_all(transposed(high), out.as_mut_ptr());
            store_all(transposed(low), out.as_mut_ptr().add(TOKENS));
        }
    }
}

/// 32 floats, each as the nearest bf16 and the remainder.
#[inline(always)]
unsafe fn parts(x: *const f32) -> (__m512i, __m512i) {
    // SAFETY: 32 floats are readable; AVX-512 BW is enabled.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let (mut high, mut low) = ([half; 2], [half; 2]);
        for i in 0..2 {
            let x = _mm512_loadu_ps(x.add(16 * i));
            high[i] = _mm512_and_si512(
                _mm512_add_epi32(_mm512_castps_si512(x), half),
                _mm512_set1_epi32(0xFFFF_0000_u32 as i32),
            );
            let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(high[i]));
            low[i] = _mm512_add_epi32(_mm512_castps_si512(rest), half);
        }
        (upper(high), upper(low))
    }
}

/// The upper halves of 32 words.
#[inline(always)]
unsafe fn upper(words: [__m512i; 2]) -> __m512i {
    const ODD: [i16; 32] = {
        let mut odd = [0; 32];
        let mut i = 0;
        while i < 32 {
            odd[i] = 2 * i as i16 + 1;
            i += 1;
        }
        odd
    };
    // SAFETY: AVX-512 BW is enabled.
    unsafe { _mm512_permutex2var_epi16(words[0], _mm512_loadu_si512(ODD.as_ptr().cast()), words[1]) }
}

/// Transposes 16 by 16 words.
#[inline(always)]
unsafe fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    let (mut pairs, mut fours, mut out) = (rows, rows, rows);
    // SAFETY: AVX-512 is enabled.
    unsafe {
        for i in (0..16).step_by(2) {
            pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // column 4 * lane + j of four rows
        for i in (0..16).step_by(4) {
            for j in 0..2 {
                fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
                fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
            }
        }
        for j in 0..4 {
            let even = (
                _mm512_shuffle_i32x4::<0x88>(fours[j], fours[4 + j]),
                _mm512_shuffle_i32x4::<0x88>(fours[8 + j], fours[12 + j]),
            );
            let odd = (
                _mm512_shuffle_i32x4::<0xDD>(fours[j], fours[4 + j]),
                _mm512_shuffle_i32x4::<0xDD>(fours[8 + j], fours[12 + j]),
            );
            out[j] = _mm512_shuffle_i32x4::<0x88>(even.0, even.1);
            out[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd.0, odd.1);
            out[8 + j] = _mm512_shuffle_i32x4::<0xDD>(even.0, even.1);
            out[12 + j] = _mm512_shuffle_i32x4::<0xDD>(odd.0, odd.1);
        }
    }
    out
}

#[inline(always)]
unsafe fn store_all(lines: [__m512i; 16], out: *mut Line) {
    for (i, line) in lines.into_iter().enumerate() {
        // SAFETY: the caller has room for 16 lines; AVX-512 is enabled.
        unsafe { _mm512_store_si512(out.add(i).cast(), line) };
    }
}
