//! Products of packed panels with AMX: 16 tokens by 16 rows at a time.
//!
//! The matrix unit computes the integers of [`crate::dot::x86::avx512::packed`], and the same steps follow in
//! the same order: the same bits.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL, DQ and VNNI and a working matrix
//! unit ([`super::probe`]), pointers that are valid for what they name, and that no other thread
//! accesses the rows of `to`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use crate::activations::quantized_rows::SUM_BLOCK;
use crate::activations::token_tiles::{MAX_TILE_TOKENS, Place, TokenTiles};
use crate::dot::x86::amx::probe::{Tiles, release};
use crate::dot::x86::avx512::packed::{DIGIT, IntegerScaled, joined, shifted};
use crate::dot::x86::avx512::packing::{GROUP, Packing, STEPS, group_lines, lines, place, unit, unpack};
use crate::dot::x86::avx512::scaling::Scaling;
use crate::dot::{PANEL, PackedWorkspace, Target};
use crate::memory::lines::Line;

/// Tokens per tile.
const TOKENS: usize = MAX_TILE_TOKENS;
/// Columns per product at most.
const DEPTH: usize = 64;
/// Lines of a panel's codes that fit the L1 cache together with the activations of a tile.
const LINES: usize = 64;

/// The same for each token of a tile, written out: their sums stay in registers.
macro_rules! each_token {
    ($t:ident => $body:expr) => { each_token!(@ $t $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (@ $t:ident $body:expr; $($n:literal)*) => { $({ const $t: usize = $n; $body })* };
}

/// Adds the products of 16 rows' codes and 16 tokens' lines to the first tile.
macro_rules! product {
    ($product:literal, $codes:ident, $x:ident) => {
        asm!(
            "tileloadd tmm2, [{codes} + {line}*1]",
            "tileloadd tmm3, [{x} + {line}*1]",
            concat!($product, " tmm0, tmm3, tmm2"),
            codes = in(reg) $codes,
            x = in(reg) $x,
            line = in(reg) size_of::<Line>(),
            options(nostack, readonly, preserves_flags),
        )
    };
}

/// How both planes are multiplied with the codes.
trait Planes {
    /// Bits of the low plane.
    const LOW: u32;
    /// In one product: the codes for the high plane precede the same codes for the low
    /// plane, scaled up accordingly.
    const ONE: bool;
    /// Codes have two digits, the upper one before the lower one of each step.
    const TWO_DIGITS: bool = false;
    /// Tiles of products: one of each digit with each plane.
    const TILES: usize = if Self::TWO_DIGITS { 4 } else { 2 };
    /// Lines of a group's codes.
    const LINES: usize = if Self::ONE || Self::TWO_DIGITS { 2 * STEPS } else { STEPS };
    /// Groups of a panel whose codes are spread at a time.
    const GROUPS: usize = LINES / Self::LINES;
}

struct One<const LOW: u32>;
impl<const BITS: u32> Planes for One<BITS> {
    const LOW: u32 = BITS;
    const ONE: bool = true;
}

struct Two;
impl Planes for Two {
    const LOW: u32 = 8;
    const ONE: bool = false;
}

struct TwoDigits;
impl Planes for TwoDigits {
    const LOW: u32 = 8;
    const ONE: bool = false;
    const TWO_DIGITS: bool = true;
}

/// Whether a code and `low` bits of the low plane fit a byte.
const fn leaves_room<P: Packing>(low: usize) -> bool {
    P::LOW + P::HIGH + low <= 8 && P::TABLE.is_none() && !P::Scales::HALVES
}

/// Some panels times all tokens.
///
/// # Safety
/// AVX-512 BW, VL, DQ and VNNI are enabled, and [`crate::dot::x86::amx::probe::works`] is true.
#[inline(always)]
pub(crate) unsafe fn dot<P: Packing>(
    panels: &[Line],
    rows: usize,
    x: &TokenTiles<'_>,
    workspace: &mut PackedWorkspace,
    to: &Target<'_>,
) {
    // SAFETY: the contract of this function.
    unsafe {
        match x.low {
            4 if leaves_room::<P>(4) => dot_planes::<P, One<4>>(panels, rows, x, workspace, to),
            // codes of one bit are 0 and 2
            6 if leaves_room::<P>(7) => dot_planes::<P, One<6>>(panels, rows, x, workspace, to),
            _ if P::Scales::TWO_DIGITS => dot_planes::<P, TwoDigits>(panels, rows, x, workspace, to),
            _ => dot_planes::<P, Two>(panels, rows, x, workspace, to),
        }
    }
}

#[inline(always)]
unsafe fn dot_planes<P: Packing, X: Planes>(
    panels: &[Line],
    rows: usize,
    x: &TokenTiles<'_>,
    workspace: &mut PackedWorkspace,
    to: &Target<'_>,
) {
    let (each, groups, tiles) = (lines::<P>(x.cols), x.cols / GROUP, x.tokens.div_ceil(TOKENS));
    let count = rows.div_ceil(PANEL);
    assert!(
        x.low == X::LOW && panels.len() == count * each && x.values.len() * GROUP >= tiles * TOKENS * x.cols
    );
    workspace.codes.resize(count * LINES, Line::default());
    workspace.products.resize(X::TILES * TOKENS, Line::default());
    workspace.sums.clear();
    workspace.sums.resize(tiles * count * TOKENS, Line::default()); // [tiles, panels, tokens, rows]
    // SAFETY: all sizes were checked or made above; the features are enabled.
    unsafe {
        Tiles { products: X::TILES, tokens: TOKENS, depth: depth::<P, X>() }.configure();
        for from in (0..groups).step_by(X::GROUPS) {
            let part = from..groups.min(from + X::GROUPS);
            for (panel, codes) in panels.chunks_exact(each).zip(workspace.codes.chunks_exact_mut(LINES)) {
                for (group, codes) in part.clone().zip(codes.chunks_exact_mut(X::LINES)) {
                    spread::<P, X>(panel, group, codes);
                }
            }
            for (tile, sums) in workspace.sums.chunks_exact_mut(count * TOKENS).enumerate() {
                let each = panels.chunks_exact(each).zip(workspace.codes.chunks_exact(LINES));
                for ((panel, codes), sums) in each.zip(sums.chunks_exact_mut(TOKENS)) {
                    let part = Part { panel, codes, x, tile, groups: part.clone() };
                    part.add::<P, X>(sums, &mut workspace.products);
                }
            }
        }
        release();
        for (tile, sums) in workspace.sums.chunks_exact(count * TOKENS).enumerate() {
            for (panel, sums) in sums.chunks_exact(TOKENS).enumerate() {
                let (to, rows) = (to.skip(panel * PANEL), PANEL.min(rows - panel * PANEL));
                for (token, sums) in (tile * TOKENS..x.tokens).zip(sums) {
                    let results = &*sums.0.as_ptr().cast::<[f32; PANEL]>();
                    to.write(token, results[..rows].iter());
                }
            }
        }
    }
}

/// Columns per product, of both planes if they share one.
const fn depth<P: Packing, X: Planes>() -> usize {
    if X::ONE || unit::<P>() > DEPTH { DEPTH } else { unit::<P>() }
}

/// The values of a group's codes, one per byte.
#[inline(always)]
unsafe fn spread<P: Packing, X: Planes>(panel: &[Line], group: usize, out: &mut [Line]) {
    let (block, group) = (group / (P::LEN / GROUP), group % (P::LEN / GROUP));
    let (line, scales) = place::<P>(block);
    let line = line + group * group_lines::<P>();
    // SAFETY: the caller's panel has this group; AVX-512 is enabled.
    unsafe {
        let codes = unpack::<P>(panel.as_ptr().add(line));
        for (s, mut codes) in codes.into_iter().enumerate() {
            if let Some(excess) = P::EXCESS {
                codes = _mm512_sub_epi8(codes, _mm512_set1_epi8((1u8 << excess) as i8));
            }
            if P::Scales::INTEGER_SCALES {
                let scales = panel.as_ptr().cast::<u8>().add(scales);
                let none = (_mm512_setzero_ps(), _mm512_setzero_ps());
                let scales = P::Scales::integer_scale(scales, none, 2 * group + s / (STEPS / 2)).0;
                if X::TWO_DIGITS {
                    let (upper, lower) = digits(codes, scales);
                    _mm512_store_si512(out[2 * s].0.as_mut_ptr().cast(), upper);
                    _mm512_store_si512(out[2 * s + 1].0.as_mut_ptr().cast(), lower);
                    continue;
                }
                codes = times(codes, scales);
            }
            _mm512_store_si512(out[X::LINES - STEPS + s].0.as_mut_ptr().cast(), codes);
            if X::ONE {
                // bits shifted into the neighbouring byte are masked
                let larger =
                    if X::LOW == 4 { _mm512_slli_epi16::<4>(codes) } else { _mm512_slli_epi16::<6>(codes) };
                let larger = _mm512_and_si512(larger, _mm512_set1_epi8((0xFFu8 << X::LOW) as i8));
                _mm512_store_si512(out[s].0.as_mut_ptr().cast(), larger);
            }
        }
    }
}

/// The number of each lane in both of its words.
#[inline(always)]
unsafe fn words(v: __m512i) -> __m512i {
    // SAFETY: AVX-512 BW is enabled.
    unsafe { _mm512_shuffle_epi8(v, _mm512_set4_epi32(0x0D0C_0D0C, 0x0908_0908, 0x0504_0504, 0x0100_0100)) }
}

/// Even bytes of the first, odd ones of the second.
#[inline(always)]
unsafe fn bytes(even: __m512i, odd: __m512i) -> __m512i {
    // SAFETY: AVX-512 BW is enabled.
    unsafe { _mm512_mask_mov_epi8(even, 0xAAAA_AAAA_AAAA_AAAA, odd) }
}

/// Four bytes of each lane times the number there, as bytes.
#[inline(always)]
unsafe fn times(codes: __m512i, by: __m512i) -> __m512i {
    // SAFETY: AVX-512 BW is enabled.
    unsafe {
        let (by, odd) = (words(by), _mm512_and_si512(codes, _mm512_set1_epi16(-256)));
        // a product's low byte depends on the low bytes alone
        bytes(_mm512_mullo_epi16(codes, by), _mm512_mullo_epi16(odd, by))
    }
}

/// The same as two digits, the lower one signed.
#[inline(always)]
unsafe fn digits(codes: __m512i, by: __m512i) -> (__m512i, __m512i) {
    // SAFETY: AVX-512 BW is enabled.
    unsafe {
        let (by, half) = (words(by), _mm512_set1_epi16(1 << (DIGIT - 1)));
        let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(codes));
        let even = _mm512_add_epi16(_mm512_mullo_epi16(even, by), half);
        let odd = _mm512_add_epi16(_mm512_mullo_epi16(_mm512_srai_epi16::<8>(codes), by), half);
        let upper = bytes(_mm512_srai_epi16::<DIGIT>(even), _mm512_slli_epi16::<{ 8 - DIGIT }>(odd));
        let lower = bytes(even, _mm512_slli_epi16::<8>(odd));
        let lower = _mm512_and_si512(lower, _mm512_set1_epi8(((1u8 << DIGIT) - 1) as i8));
        (upper, _mm512_sub_epi8(lower, _mm512_set1_epi8(1 << (DIGIT - 1))))
    }
}

/// Some groups of a panel times one tile of tokens.
struct Part<'a> {
    panel: &'a [Line],
    /// Codes of these groups, one per byte.
    codes: &'a [Line],
    x: &'a TokenTiles<'a>,
    tile: usize,
    groups: Range<usize>,
}

impl Part<'_> {
    /// Adds the products of all units to the sums of each token; the matrix unit is one ahead.
    #[inline(always)]
    unsafe fn add<P: Packing, X: Planes>(&self, out: &mut [Line], workspace: &mut [Line]) {
        assert!(out.len() == TOKENS && workspace.len() == X::TILES * TOKENS);
        let (unit, cols) = (unit::<P>(), self.x.cols);
        let (first, count) = (self.groups.start * GROUP / unit, self.groups.len() * GROUP / unit);
        let (out, workspace) = (out.as_mut_ptr(), workspace.as_mut_ptr());
        // scales and sums of a unit's tokens are contiguous
        let facts = |each: usize, i: usize| (self.tile * (cols / each) + (first + i) * unit / each) * TOKENS;
        // SAFETY: the contract: these groups, and a tile of tokens.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); TOKENS];
            each_token!(T => sums[T] = _mm512_load_ps(out.add(T).cast()));
            self.multiply::<P, X>(first, 0);
            for i in 0..count {
                store::<X>(workspace);
                if i + 1 < count {
                    self.multiply::<P, X>(first, i + 1);
                }
                let (block, place_in) = ((first + i) / (P::LEN / unit), (first + i) % (P::LEN / unit));
                let scales = self.panel.as_ptr().cast::<u8>().add(place::<P>(block).1);
                let head = P::Scales::head(scales);
                if P::Scales::INTEGER_SCALES && P::Scales::OFFSETS {
                    for half in 0..unit / SUM_BLOCK {
                        let (_, offset) =
                            P::Scales::integer_scale(scales, head, place_in * (unit / SUM_BLOCK) + half);
                        let x_sum = self.x.sums16.as_ptr().add(facts(SUM_BLOCK, i) + half * TOKENS);
                        each_token!(T => sums[T] = shifted::<P>(sums[T], offset, x_sum.add(T)));
                    }
                }
                let scales = P::Scales::at(scales, head, place_in);
                let x_scale = self.x.scales.as_ptr().add(facts(GROUP, i));
                let x_sum = if P::Scales::HALVES {
                    self.x.sums16.as_ptr().add(facts(SUM_BLOCK, i))
                } else {
                    self.x.sums32.as_ptr().add(facts(GROUP, i))
                };
                let products = workspace;
                each_token!(T => {
                    let mut all = _mm512_load_si512(products.add(T).cast());
                    if !X::ONE {
                        let below = _mm512_load_si512(products.add(TOKENS + T).cast());
                        let above = _mm512_slli_epi32::<8>(all);
                        all = _mm512_add_epi32(above, below);
                    }
                    sums[T] = if P::Scales::INTEGER_SCALES {
                        let mut lower = _mm512_setzero_si512();
                        if X::TWO_DIGITS {
                            let above = _mm512_load_si512(products.add(2 * TOKENS + T).cast());
                            let below = _mm512_load_si512(products.add(3 * TOKENS + T).cast());
                            lower = _mm512_add_epi32(_mm512_slli_epi32::<8>(above), below);
                        }
                        IntegerScaled { all, lower }.joined::<P>(sums[T], head.0, x_scale.add(T))
                    } else {
                        joined::<P>(sums[T], all, scales, x_scale.add(T), x_sum.add(T))
                    };
                });
            }
            each_token!(T => _mm512_store_ps(out.add(T).cast(), sums[T]));
        }
    }

    /// The products of unit `i` of these with all tokens: both planes in one tile, or in two.
    #[inline(always)]
    unsafe fn multiply<P: Packing, X: Planes>(&self, first: usize, i: usize) {
        let (unit, depth) = (unit::<P>(), depth::<P, X>());
        let place = Place::of((first + i) * unit, self.x.cols, X::LOW);
        // SAFETY: the tiles are configured for these sizes, and all of it is readable.
        unsafe {
            let mut codes = self.codes.as_ptr().add(i * unit * X::LINES / GROUP);
            let tile = self.x.values.as_ptr().cast::<i8>().add(self.tile * TOKENS * self.x.cols * 2);
            let mut high = tile.add(place.at);
            if X::ONE {
                asm!("tilezero tmm0", options(nostack, nomem, preserves_flags));
                for _ in 0..unit / GROUP {
                    // unsigned codes reach 240
                    if P::EXCESS.is_some() {
                        product!("tdpbssd", codes, high);
                    } else {
                        product!("tdpbsud", codes, high);
                    }
                    (codes, high) = (codes.add(X::LINES), high.wrapping_add(DEPTH * TOKENS));
                }
                return;
            }
            asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem, preserves_flags));
            if X::TWO_DIGITS {
                asm!("tilezero tmm2", "tilezero tmm3", options(nostack, nomem, preserves_flags));
                for _ in 0..unit / depth {
                    asm!(
                        "tileloadd tmm4, [{upper} + {line}*1]",
                        "tileloadd tmm6, [{high} + {stride}*1]",
                        "tileloadd tmm7, [{low} + {stride}*1]",
                        "tileloadd tmm5, [{lower} + {line}*1]",
                        "tdpbssd tmm0, tmm6, tmm4",
                        "tdpbssd tmm1, tmm7, tmm4",
                        "tdpbssd tmm2, tmm6, tmm5",
                        "tdpbssd tmm3, tmm7, tmm5",
                        upper = in(reg) codes,
                        lower = in(reg) codes.add(1),
                        line = in(reg) 2 * size_of::<Line>(),
                        high = in(reg) high,
                        low = in(reg) high.wrapping_add(place.low),
                        stride = in(reg) place.stride,
                        options(nostack, readonly, preserves_flags),
                    );
                    (codes, high) = (codes.add(depth / 2), high.wrapping_add(2 * TOKENS * depth));
                }
                return;
            }
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
                    low = in(reg) high.wrapping_add(place.low),
                    stride = in(reg) place.stride,
                    options(nostack, readonly, preserves_flags),
                );
                (codes, high) = (codes.add(depth / 4), high.wrapping_add(2 * TOKENS * depth));
            }
        }
    }
}

/// Stores the results of `multiply`: `[tiles, tokens, rows]`.
///
/// # Safety
/// `out` has memory for all tiles.
#[inline(always)]
unsafe fn store<X: Planes>(out: *mut Line) {
    // SAFETY: the contract of this function.
    unsafe {
        asm!(
            "tilestored [{above} + {line}*1], tmm0",
            line = in(reg) size_of::<Line>(),
            above = in(reg) out,
            options(nostack, preserves_flags),
        );
        if !X::ONE {
            asm!(
                "tilestored [{below} + {line}*1], tmm1",
                line = in(reg) size_of::<Line>(),
                below = in(reg) out.add(TOKENS),
                options(nostack, preserves_flags),
            );
        }
        if X::TWO_DIGITS {
            asm!(
                "tilestored [{above} + {line}*1], tmm2",
                "tilestored [{below} + {line}*1], tmm3",
                line = in(reg) size_of::<Line>(),
                above = in(reg) out.add(2 * TOKENS),
                below = in(reg) out.add(3 * TOKENS),
                options(nostack, preserves_flags),
            );
        }
    }
}
