//! Products of float weights with AMX: 32 tokens by 32 rows at a time.
//!
//! An activation is the sum of two bf16, which keep 17 of its bits, and so is a weight
//! ([`super::float_panels`]). The products of the high parts and those of a high and a low part are added to
//! the same f32 sum, 32 columns at a time: the same bits for any number of rows and tokens. Equals
//! `scalar::float_rows` to rounding.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL and DQ, F16C and a working matrix unit
//! with bf16 ([`super::probe`]), pointers that are valid for what they name, and that no other thread
//! accesses the rows of `to`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::float_panels::{DEPTH, FloatPanels, TILE, lines, parts_at, unpack};
use crate::dot::x86::amx::probe::{configure, release};
use crate::dot::{PANEL, PackedWorkspace, Target};
use crate::memory::lines::Line;

/// Tokens per tile.
const TOKENS: usize = 16;
/// Products in sequence: the weights of two panels stay in the L1 cache for all tokens.
const CHUNK: usize = 8;
/// Lines of 32 columns of a tile of tokens: high parts, then low parts.
const X_LINES: usize = 2 * TOKENS;

/// One instruction for each of some tiles.
macro_rules! tiles {
    ($($line:literal),*; $($name:ident = $value:expr),*) => {
        asm!($($line),* $(, $name = in(reg) $value)*, options(nostack, preserves_flags))
    };
}

/// Some panels times all tokens.
#[inline(always)]
pub(crate) unsafe fn dot<F: FloatPanels>(
    panels: &[Line],
    (rows, cols): (usize, usize),
    x: &[f32],
    workspace: &mut PackedWorkspace,
    to: &Target<'_>,
) {
    let (count, blocks, tokens) = (rows.div_ceil(PANEL), cols.div_ceil(DEPTH), x.len() / cols);
    let (tiles, each) = (tokens.div_ceil(TOKENS), lines::<F>(cols));
    assert!(panels.len() == count * each && x.len() == tokens * cols);
    if !workspace.has_x {
        workspace.x.resize(tiles * blocks * X_LINES, Line::default());
        for (x, out) in x.chunks(TOKENS * cols).zip(workspace.x.chunks_exact_mut(blocks * X_LINES)) {
            // SAFETY: whole tokens, and lines for a tile of them.
            unsafe { split(x, cols, out) };
        }
        workspace.has_x = true;
    }
    workspace.sums.resize(tiles * count * TOKENS, Line::default()); // [tiles, panels, tokens, rows]
    // SAFETY: all sizes were checked or made here; the features are enabled.
    unsafe {
        let (of_tokens, of_rows) = ((tokens.min(TOKENS) as u8, 64), (TILE as u8, 64));
        configure([of_tokens, of_tokens, of_tokens, of_tokens, of_tokens, of_tokens, of_rows, of_rows]);
        // of few tokens, the products of a block are computed while the next one is unpacked
        let chunk = if F::IN_PLACE || tiles > 2 { CHUNK } else { 1 };
        for from in (0..blocks).step_by(chunk) {
            let part = from..blocks.min(from + chunk);
            for panel in (0..count).step_by(2) {
                let group = 2.min(count - panel);
                let lines = |p: usize| p * each + part.start * F::LINES..p * each + part.end * F::LINES;
                let mut weights = [panel, panel + group - 1].map(|p| panels[lines(p)].as_ptr());
                if !F::IN_PLACE {
                    let len = part.len() * F::PARTS * TILE;
                    workspace.codes.resize(2 * CHUNK * F::PARTS * TILE, Line::default());
                    for (p, weights) in weights.iter_mut().enumerate().take(group) {
                        let out = &mut workspace.codes[p * len..][..len];
                        unpack::<F>(&panels[lines(panel + p)], out);
                        *weights = out.as_ptr();
                    }
                }
                for tile in (0..tiles).step_by(2) {
                    let x = &workspace.x[(tile * blocks + from) * X_LINES..];
                    let sums = &mut workspace.sums[(tile * count + panel) * TOKENS..];
                    let product = Part {
                        weights,
                        x: [x.as_ptr(), x.as_ptr().wrapping_add(blocks * X_LINES)],
                        sums: sums.as_mut_ptr(),
                        next: count * TOKENS,
                        blocks: part.clone(),
                    };
                    match (2.min(tiles - tile), group) {
                        (1, 1) => product.add::<F, 1, 1>(),
                        (1, _) => product.add::<F, 1, 2>(),
                        (_, 1) => product.add::<F, 2, 1>(),
                        _ => product.add::<F, 2, 2>(),
                    }
                }
            }
        }
        release();
        for (tile, sums) in workspace.sums.chunks_exact(count * TOKENS).enumerate() {
            for (panel, sums) in sums.chunks_exact(TOKENS).enumerate() {
                let (to, there) = (to.skip(panel * PANEL), PANEL.min(rows - panel * PANEL));
                for (token, sums) in (tile * TOKENS..tokens).zip(sums) {
                    let results = &*sums.0.as_ptr().cast::<[f32; PANEL]>();
                    to.write(token, results[..there].iter());
                }
            }
        }
    }
}

/// Some blocks of one or two panels times one or two tiles of tokens.
struct Part {
    weights: [*const Line; 2],
    x: [*const Line; 2],
    /// Sums of the first tile and panel; those of the next panel follow, those of the next
    /// tile are `next` lines later.
    sums: *mut Line,
    next: usize,
    blocks: Range<usize>,
}

impl Part {
    /// Adds the products to the sums: tiles 0 to 3 hold those of a tile of tokens with each panel, 4 and 5
    /// tokens, 6 and 7 weights.
    #[inline(always)]
    unsafe fn add<F: FloatPanels, const T: usize, const P: usize>(&self) {
        let line = size_of::<Line>();
        let (a, c) = (self.sums, self.sums.wrapping_add(self.next));
        let (b, d) = (a.wrapping_add(TOKENS), c.wrapping_add(TOKENS));
        // SAFETY: the contract of this module.
        unsafe {
            if self.blocks.start == 0 {
                tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3";);
            } else {
                tiles!("tileloadd tmm0, [{a} + {line}*1]"; a = a, line = line);
                if P > 1 {
                    tiles!("tileloadd tmm1, [{b} + {line}*1]"; b = b, line = line);
                }
                if T > 1 {
                    tiles!("tileloadd tmm2, [{c} + {line}*1]"; c = c, line = line);
                }
                if T > 1 && P > 1 {
                    tiles!("tileloadd tmm3, [{d} + {line}*1]"; d = d, line = line);
                }
            }
            for block in 0..self.blocks.len() {
                let x = self.x.map(|x| x.wrapping_add(block * X_LINES));
                let w = self.weights.map(|w| w.wrapping_add(block * F::PARTS * TILE));
                load_tokens::<T>(x.map(|x| x.wrapping_add(TOKENS)));
                load_weights::<P>(w);
                products::<T, P>();
                load_tokens::<T>(x);
                products::<T, P>();
                if F::PARTS > 1 {
                    load_weights::<P>(w.map(|w| w.wrapping_add(TILE)));
                    products::<T, P>();
                }
            }
            tiles!("tilestored [{a} + {line}*1], tmm0"; a = a, line = line);
            if P > 1 {
                tiles!("tilestored [{b} + {line}*1], tmm1"; b = b, line = line);
            }
            if T > 1 {
                tiles!("tilestored [{c} + {line}*1], tmm2"; c = c, line = line);
            }
            if T > 1 && P > 1 {
                tiles!("tilestored [{d} + {line}*1], tmm3"; d = d, line = line);
            }
        }
    }
}

#[inline(always)]
unsafe fn load_tokens<const T: usize>(x: [*const Line; 2]) {
    // SAFETY: the contract of this module.
    unsafe {
        tiles!("tileloadd tmm4, [{x} + {line}*1]"; x = x[0], line = size_of::<Line>());
        if T > 1 {
            tiles!("tileloadd tmm5, [{x} + {line}*1]"; x = x[1], line = size_of::<Line>());
        }
    }
}

#[inline(always)]
unsafe fn load_weights<const P: usize>(w: [*const Line; 2]) {
    // SAFETY: the contract of this module.
    unsafe {
        tiles!("tileloadd tmm6, [{w} + {line}*1]"; w = w[0], line = size_of::<Line>());
        if P > 1 {
            tiles!("tileloadd tmm7, [{w} + {line}*1]"; w = w[1], line = size_of::<Line>());
        }
    }
}

/// Adds the products of the loaded tokens and weights.
#[inline(always)]
unsafe fn products<const T: usize, const P: usize>() {
    // SAFETY: the contract of this module.
    unsafe {
        tiles!("tdpbf16ps tmm0, tmm4, tmm6";);
        if P > 1 {
            tiles!("tdpbf16ps tmm1, tmm4, tmm7";);
        }
        if T > 1 {
            tiles!("tdpbf16ps tmm2, tmm5, tmm6";);
        }
        if T > 1 && P > 1 {
            tiles!("tdpbf16ps tmm3, tmm5, tmm7";);
        }
    }
}

/// Up to 16 tokens as parts, block by block: a line per token with its high parts, then a line per token
/// with its low parts. Columns past the end are zeros; lines of absent tokens are not written, and
/// nothing depends on them.
#[inline(always)]
unsafe fn split(x: &[f32], cols: usize, out: &mut [Line]) {
    for (token, x) in x.chunks_exact(cols).enumerate() {
        for (x, out) in x.chunks(DEPTH).zip(out.chunks_exact_mut(X_LINES)) {
            let mut whole = [0.0; DEPTH];
            let mut at = x.as_ptr();
            if x.len() < DEPTH {
                whole[..x.len()].copy_from_slice(x);
                at = whole.as_ptr();
            }
            // SAFETY: 32 floats; whole lines; AVX-512 is enabled.
            unsafe {
                let [high, low] = parts_at(at);
                _mm512_store_si512(out[token].0.as_mut_ptr().cast(), high);
                _mm512_store_si512(out[TOKENS + token].0.as_mut_ptr().cast(), low);
            }
        }
    }
}
