//! Products of packed panels with AMX: 16 tokens by 16 rows at a time.
//!
//! The matrix unit makes the integers that [`super::x86_packed`] makes, and the same steps follow in the same order:
//! the same bits.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::x86_amx_probe::{Tiles, release};
use super::x86_packed::{self as packed, joined};
use super::x86_packing::{GROUP, Packing, STEPS, group_lines, lines, place, unit, unpack};
use super::x86_scaling::Scaling;
use super::{PANEL, PackedRoom, Target};
use crate::ints::Ints;
use crate::lanes::Line;

/// Tokens of a tile.
const TOKENS: usize = 16;
/// Most columns that meet in one product.
const DEPTH: usize = 64;
/// Tokens that are left over and go without a tile.
const FEW: usize = 4;
/// Groups whose codes, and the activations of a tile, stay in the first cache.
const GROUPS: usize = 8;

/// The same for each token of a tile, written out: their sums stay in registers.
macro_rules! each_token {
    ($t:ident => $body:expr) => { each_token!(@ $t $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (@ $t:ident $body:expr; $($n:literal)*) => { $({ const $t: usize = $n; $body })* };
}

/// Some panels against all tokens.
///
/// # Safety
/// Called under AVX-512 BW, VL, DQ and VNNI, where [`super::x86_amx_probe::works`] is true.
#[inline(always)]
pub(super) unsafe fn dot<P: Packing>(
    panels: &[Line],
    rows: usize,
    x: &Ints<'_>,
    room: &mut PackedRoom,
    to: &Target<'_>,
) {
    let (each, tokens, groups) = (lines::<P>(x.cols), x.rows(), x.cols / GROUP);
    let count = rows.div_ceil(PANEL);
    assert!(panels.len() == count * each);
    let rest = tokens % TOKENS;
    if tokens < TOKENS {
        // SAFETY: the caller's promise.
        return unsafe { packed::dot::<P>(panels, rows, x, to) };
    }
    let tiles = tokens / TOKENS + usize::from(rest > FEW);
    // the last tile reaches back over tokens that were done: they come out the same
    let first = |tile: usize| (tile * TOKENS).min(tokens - TOKENS);
    room.codes.resize(count * GROUPS * STEPS, Line::default());
    room.products.resize(2 * TOKENS, Line::default());
    room.sums.clear();
    room.sums.resize(tiles * count * TOKENS, Line::default()); // [tiles, panels, tokens, rows]
    // SAFETY: all sizes were checked or made above; called under the features.
    unsafe {
        Tiles { tokens: TOKENS, depth: unit::<P>().min(DEPTH) }.configure();
        for from in (0..groups).step_by(GROUPS) {
            let part = from..groups.min(from + GROUPS);
            for (panel, codes) in panels.chunks_exact(each).zip(room.codes.chunks_exact_mut(GROUPS * STEPS)) {
                for (group, codes) in part.clone().zip(codes.chunks_exact_mut(STEPS)) {
                    spread::<P>(panel, group, codes);
                }
            }
            for (tile, sums) in room.sums.chunks_exact_mut(count * TOKENS).enumerate() {
                let each = panels.chunks_exact(each).zip(room.codes.chunks_exact(GROUPS * STEPS));
                for ((panel, codes), sums) in each.zip(sums.chunks_exact_mut(TOKENS)) {
                    let part = Part { panel, codes, x, token: first(tile), groups: part.clone() };
                    part.add::<P>(sums, &mut room.products);
                }
            }
        }
        release();
        for (tile, sums) in room.sums.chunks_exact(count * TOKENS).enumerate() {
            for (panel, sums) in sums.chunks_exact(TOKENS).enumerate() {
                let (to, rows) = (to.skip(panel * PANEL), PANEL.min(rows - panel * PANEL));
                for (t, sums) in sums.iter().enumerate() {
                    let results = &*sums.0.as_ptr().cast::<[f32; PANEL]>();
                    to.write(first(tile) + t, results[..rows].iter());
                }
            }
        }
        if rest > 0 && rest <= FEW {
            packed::dot_from::<P>(panels, rows, x, tokens - rest, to);
        }
    }
}

/// The values of a group's codes, one a byte.
#[inline(always)]
unsafe fn spread<P: Packing>(panel: &[Line], group: usize, out: &mut [Line]) {
    let block = group / (P::LEN / GROUP);
    let line = place::<P>(block).0 + group % (P::LEN / GROUP) * group_lines::<P>();
    // SAFETY: the caller's panel has this group; called under AVX-512.
    unsafe {
        let codes = unpack::<P>(panel.as_ptr().add(line));
        for (mut codes, out) in codes.into_iter().zip(out) {
            if let Some(excess) = P::EXCESS {
                codes = _mm512_sub_epi8(codes, _mm512_set1_epi8((1u8 << excess) as i8));
            }
            _mm512_store_si512(out.0.as_mut_ptr().cast(), codes);
        }
    }
}

/// Some groups of a panel against one tile of tokens.
struct Part<'a> {
    panel: &'a [Line],
    /// Of these groups, one a byte.
    codes: &'a [Line],
    x: &'a Ints<'a>,
    token: usize,
    groups: Range<usize>,
}

impl Part<'_> {
    /// Adds the products of all units to the sums of each token; the matrix unit is one ahead.
    #[inline(always)]
    unsafe fn add<P: Packing>(&self, out: &mut [Line], room: &mut [Line]) {
        assert!(out.len() == TOKENS && room.len() == 2 * TOKENS);
        let unit = unit::<P>();
        let (first, count) = (self.groups.start * GROUP / unit, self.groups.len() * GROUP / unit);
        let (out, room) = (out.as_mut_ptr(), room.as_mut_ptr());
        // SAFETY: the caller's promise: these groups, and a tile of tokens.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); TOKENS];
            each_token!(T => sums[T] = _mm512_load_ps(out.add(T).cast()));
            self.multiply(0, unit);
            for i in 0..count {
                store(room);
                if i + 1 < count {
                    self.multiply(i + 1, unit);
                }
                let (block, place_in) = ((first + i) / (P::LEN / unit), (first + i) % (P::LEN / unit));
                let scales = self.panel.as_ptr().cast::<u8>().add(place::<P>(block).1);
                let scales = P::Scales::at(scales, P::Scales::head(scales), place_in);
                let x = self.x.unit(self.token, first + i, unit);
                let (scale_step, sum_step) = (self.x.cols / GROUP, self.x.cols / unit.min(GROUP));
                let products = room;
                each_token!(T => {
                    let above = _mm512_load_si512(products.add(T).cast());
                    let below = _mm512_load_si512(products.add(TOKENS + T).cast());
                    let products = _mm512_add_epi32(_mm512_slli_epi32::<8>(above), below);
                    let x = (x.scale.add(T * scale_step), x.sum.add(T * sum_step));
                    sums[T] = joined::<P>(sums[T], products, scales, x);
                });
            }
            each_token!(T => _mm512_store_ps(out.add(T).cast(), sums[T]));
        }
    }

    /// The products of unit `i` of these with both planes of all tokens, in two tiles.
    #[inline(always)]
    unsafe fn multiply(&self, i: usize, unit: usize) {
        let depth = unit.min(DEPTH);
        // SAFETY: the tiles are configured for these sizes, and all of it is readable.
        unsafe {
            let mut codes = self.codes.as_ptr().add(i * unit / 4);
            let (mut high, mut low) =
                self.x.unit(self.token, self.groups.start * GROUP / unit + i, unit).values;
            asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem, preserves_flags));
            for _ in 0..unit / depth {
                asm!(
                    "tileloadd tmm2, [{codes} + {line}*1]",
                    "tileloadd tmm3, [{high} + {stride}*1]",
                    "tileloadd tmm4, [{low} + {stride}*1]",
                    "tdpbssd tmm0, tmm3, tmm2",
                    "tdpbssd tmm1, tmm4, tmm2",
                    codes = in(reg) codes,
                    line = in(reg) size_of::<Line>(),
                    high = in(reg) high,
                    low = in(reg) low,
                    stride = in(reg) self.x.stride,
                    options(nostack, readonly, preserves_flags),
                );
                (codes, high, low) =
                    (codes.add(depth / 4), high.wrapping_add(depth), low.wrapping_add(depth));
            }
        }
    }
}

/// What `multiply` left, `[2, tokens, rows]`.
///
/// # Safety
/// There is room for two tiles.
#[inline(always)]
unsafe fn store(out: *mut Line) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilestored [{above} + {line}*1], tmm0",
            "tilestored [{below} + {line}*1], tmm1",
            line = in(reg) size_of::<Line>(),
            above = in(reg) out,
            below = in(reg) out.add(TOKENS),
            options(nostack, preserves_flags),
        );
    }
}
