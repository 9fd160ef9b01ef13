//! Products of packed panels with AVX-512 and VNNI: 16 rows in the lanes, activations broadcast four at a time.
//!
//! The products of columns that share their scales are added up to one exact integer a row, which takes its scale
//! and joins the row's sum, group after group: `scalar::dot_codes` to rounding, and the same bits for any number of
//! tokens.

use std::arch::x86_64::*;

use super::x86_packing::{GROUP, Packing, STEPS, group_lines, lines, place, unit, unpack};
use super::x86_scaling::Scaling;
use super::{PANEL, Target};
use crate::ints::Ints;
use crate::lanes::Line;

/// Lines that are asked for ahead of time.
const AHEAD: usize = 48;

/// Some panels against all tokens.
///
/// # Safety
/// Called under AVX-512 BW, VL, DQ and VNNI.
#[inline(always)]
pub(super) unsafe fn dot<P: Packing>(panels: &[Line], rows: usize, x: &Ints<'_>, to: &Target<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dot_from::<P>(panels, rows, x, 0, to) }
}

/// Some panels against the tokens from `first` on.
///
/// # Safety
/// As for `dot`.
#[inline(always)]
pub(super) unsafe fn dot_from<P: Packing>(
    panels: &[Line],
    rows: usize,
    x: &Ints<'_>,
    first: usize,
    to: &Target<'_>,
) {
    let each = lines::<P>(x.cols);
    assert!(panels.len() == rows.div_ceil(PANEL) * each);
    for (i, panel) in panels.chunks_exact(each).enumerate() {
        let (to, rows) = (to.skip(i * PANEL), PANEL.min(rows - i * PANEL));
        let mut t = first;
        // SAFETY: the panel is whole, and `t` stays below the tokens of `x`.
        unsafe {
            while t < x.rows() {
                t += match x.rows() - t {
                    1 => some_tokens::<P, 1>(panel, rows, (x, t), &to),
                    2 | 3 => some_tokens::<P, 2>(panel, rows, (x, t), &to),
                    _ => some_tokens::<P, 4>(panel, rows, (x, t), &to),
                };
            }
        }
    }
}

/// `N` tokens from `first` on; gives their number.
#[inline(always)]
unsafe fn some_tokens<P: Packing, const N: usize>(
    panel: &[Line],
    rows: usize,
    (x, first): (&Ints<'_>, usize),
    to: &Target<'_>,
) -> usize {
    let unit = unit::<P>();
    let halves = if P::Scales::HALVES { 2 } else { 1 };
    let ways = if N == 1 { 4 } else { 2 } / halves;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); N];
        for block in 0..x.cols / P::LEN {
            let (line, scales) = place::<P>(block);
            let (codes, scales) = (panel.as_ptr().add(line), panel.as_ptr().cast::<u8>().add(scales));
            let head = P::Scales::head(scales);
            for i in 0..P::LEN / unit.max(GROUP) {
                let mut products = [[Products::none(); N]; 4];
                for g in 0..unit.div_ceil(GROUP) {
                    let codes = codes.add((i * unit.div_ceil(GROUP) + g) * group_lines::<P>());
                    if N == 1 {
                        ahead::<P>(codes);
                    }
                    let codes = unpack::<P>(codes);
                    let group = (block * P::LEN + i * unit.max(GROUP)) / GROUP + g;
                    for n in 0..N {
                        let (high, low) = x.unit(first + n, group, GROUP).values;
                        for (s, codes) in codes.into_iter().enumerate() {
                            // several sums hide the time a product takes
                            let which = s / (STEPS / halves) * ways + s % ways;
                            products[which][n].add(codes, high.add(4 * s), low.add(4 * s));
                        }
                    }
                }
                let at = block * (P::LEN / unit) + i * unit.max(GROUP) / unit;
                for half in 0..halves {
                    let scales = P::Scales::at(scales, head, i * unit.max(GROUP) / unit + half);
                    for n in 0..N {
                        let x = x.unit(first + n, at + half, unit);
                        let mut all = products[half * ways][n];
                        for way in 1..ways {
                            all.join(products[half * ways + way][n]);
                        }
                        let mut all = all.all();
                        if let Some(excess) = P::EXCESS {
                            all = _mm512_add_epi32(all, _mm512_set1_epi32(minus(x.minus, unit) << excess));
                        }
                        sums[n] = joined::<P>(sums[n], all, scales, (x.scale, x.sum));
                    }
                }
            }
        }
        for (n, sums) in sums.into_iter().enumerate() {
            let mut results = [0.0; PANEL];
            _mm512_storeu_ps(results.as_mut_ptr(), sums);
            to.write(first + n, results[..rows].iter());
        }
    }
    N
}

/// Asks for what comes after: panels follow each other.
#[inline(always)]
unsafe fn ahead<P: Packing>(codes: *const Line) {
    for line in 0..group_lines::<P>() {
        // SAFETY: a prefetch reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD + line).cast()) };
    }
}

/// Minus the sum of a unit's activations.
#[inline(always)]
unsafe fn minus(parts: *const i32, unit: usize) -> i32 {
    // SAFETY: a unit has these parts.
    (0..unit.div_ceil(GROUP)).map(|i| unsafe { *parts.add(i) }).sum()
}

/// Codes times activations, both planes.
#[derive(Clone, Copy)]
struct Products {
    above: __m512i,
    below: __m512i,
}

impl Products {
    #[inline(always)]
    unsafe fn none() -> Products {
        // SAFETY: called under AVX-512.
        unsafe { Products { above: _mm512_setzero_si512(), below: _mm512_setzero_si512() } }
    }

    /// Four columns of each row.
    #[inline(always)]
    unsafe fn add(&mut self, codes: __m512i, high: *const i8, low: *const i8) {
        // SAFETY: four activations are readable at each; called under AVX-512 VNNI.
        unsafe {
            let four = |p: *const i8| _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
            self.above = _mm512_dpbusd_epi32(self.above, codes, four(high));
            self.below = _mm512_dpbusd_epi32(self.below, codes, four(low));
        }
    }

    #[inline(always)]
    unsafe fn join(&mut self, other: Products) {
        // SAFETY: called under AVX-512.
        unsafe {
            self.above = _mm512_add_epi32(self.above, other.above);
            self.below = _mm512_add_epi32(self.below, other.below);
        }
    }

    #[inline(always)]
    unsafe fn all(&self) -> __m512i {
        // SAFETY: called under AVX-512.
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(self.above), self.below) }
    }
}

/// A group's products take their scale and join the sum.
#[inline(always)]
pub(super) unsafe fn joined<P: Packing>(
    sum: __m512,
    products: __m512i,
    (scale, offset): (__m512, __m512),
    (x_scale, x_sum): (*const f32, *const f32),
) -> __m512 {
    // SAFETY: the caller's pointers are readable; called under AVX-512.
    unsafe {
        let factor = _mm512_mul_ps(scale, _mm512_set1_ps(*x_scale));
        let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), factor, sum);
        if P::Scales::OFFSETS { _mm512_fmadd_ps(offset, _mm512_set1_ps(*x_sum), sum) } else { sum }
    }
}
