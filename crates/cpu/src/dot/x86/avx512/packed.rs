//! Products of packed panels with AVX-512 and VNNI: 16 rows in the lanes, activations
//! broadcast four at a time.
//!
//! The products of columns that share their scales are summed to one exact integer per row, which is
//! multiplied by its scale and added to the row's sum, group after group: `scalar::dot_codes` to rounding,
//! and the same bits for any number of tokens.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL, DQ and VNNI, pointers that are valid
//! for what they name (a group's codes, a block's scales, a unit of activations), and that no other thread
//! accesses the rows of `to`.

use std::arch::x86_64::*;

use crate::activations::quantized_rows::QuantizedRows;
use crate::dot::x86::avx512::packing::{GROUP, Packing, STEPS, group_lines, lines, place, unit, unpack_step};
use crate::dot::x86::avx512::scaling::Scaling;
use crate::dot::{PANEL, Target};
use crate::memory::lines::Line;

/// Lines that are prefetched, in all panels that are multiplied with a token together.
const AHEAD: usize = 64;

/// The same for each step of a group, written out: products stay in registers.
macro_rules! each_step {
    ($s:ident => $body:expr) => { each_step!(@ $s $body; 0 1 2 3 4 5 6 7) };
    (@ $s:ident $body:expr; $($n:literal)*) => { $({ const $s: usize = $n; $body })* };
}

/// Some panels times all tokens.
///
/// # Safety
/// AVX-512 BW, VL, DQ and VNNI are enabled.
#[inline(always)]
pub(crate) unsafe fn dot<P: Packing>(panels: &[Line], rows: usize, x: &QuantizedRows<'_>, to: &Target<'_>) {
    let (each, tokens) = (lines::<P>(x.cols), x.rows());
    assert!(panels.len() == rows.div_ceil(PANEL) * each);
    // SAFETY: panels are whole, and tokens stay below those of `x`.
    unsafe {
        if tokens == 1 {
            // several panels share each read of a token, and several streams saturate memory
            let (count, mut i) = (panels.len() / each, 0);
            while i < count {
                let part = |m: usize| &panels[i * each..(i + m) * each];
                match count - i {
                    1 => tile::<P, 1, 1>(part(1), i, rows, x, 0, to),
                    2 | 3 => tile::<P, 2, 1>(part(2), i, rows, x, 0, to),
                    _ => tile::<P, 4, 1>(part(4), i, rows, x, 0, to),
                };
                i += [1, 2, 2, 4][(count - i - 1).min(3)];
            }
            return;
        }
        // two panels share the activations of up to four tokens, if their sums fit the registers
        let pairs = if P::Scales::HALVES { 1 } else { 2 };
        for (i, some) in panels.chunks(pairs * each).enumerate() {
            let (first, mut t) = (i * pairs, 0);
            while t < tokens {
                t += match (some.len() / each, tokens - t) {
                    (1, 1) => tile::<P, 1, 1>(some, first, rows, x, t, to),
                    (1, 2 | 3) => tile::<P, 1, 2>(some, first, rows, x, t, to),
                    (1, _) => tile::<P, 1, 4>(some, first, rows, x, t, to),
                    (_, 1) => tile::<P, 2, 1>(some, first, rows, x, t, to),
                    (_, 2) => tile::<P, 2, 2>(some, first, rows, x, t, to),
                    (_, 3) => tile::<P, 2, 3>(some, first, rows, x, t, to),
                    _ => tile::<P, 2, 4>(some, first, rows, x, t, to),
                };
            }
        }
    }
}

/// `M` panels, the `index`th and those after it, times `N` tokens from `first` on; returns the number of
/// tokens.
#[inline(always)]
unsafe fn tile<P: Packing, const M: usize, const N: usize>(
    panels: &[Line],
    index: usize,
    rows: usize,
    x: &QuantizedRows<'_>,
    first: usize,
    to: &Target<'_>,
) -> usize {
    let unit = unit::<P>();
    let (halves, whole) = (if P::Scales::HALVES { 2 } else { 1 }, P::Scales::INTEGER_SCALES);
    // several sums hide the latency of a product
    let ways = (if M * N == 1 {
        4
    } else if M * N <= 4 {
        2
    } else {
        1
    } / halves)
        .max(1);
    let each = panels.len() / M;
    // SAFETY: the contract of this function.
    unsafe {
        let panel = |m: usize| panels.as_ptr().add(m * each);
        let mut sums = [[_mm512_setzero_ps(); N]; M];
        for block in 0..x.cols / P::LEN {
            let (line, scales) = place::<P>(block);
            let scales = |m: usize| panel(m).cast::<u8>().add(scales);
            for i in 0..P::LEN / unit.max(GROUP) {
                let mut products = [[[Products::none(); N]; M]; 4];
                let mut scaled = [[IntegerScaled::none(); N]; M];
                for g in 0..unit.div_ceil(GROUP) {
                    if whole {
                        products = [[[Products::none(); N]; M]; 4];
                    }
                    let codes = line + (i * unit.div_ceil(GROUP) + g) * group_lines::<P>();
                    let group = (block * P::LEN + i * unit.max(GROUP)) / GROUP + g;
                    if first == 0 {
                        (0..M).for_each(|m| ahead::<P, M>(panel(m), codes, each));
                    }
                    each_step!(S => {
                        let which = S / (STEPS / halves) * ways + S % ways;
                        // no closure: it may be compiled separately, without AVX-512
                        let mut unpacked = [_mm512_setzero_si512(); M];
                        for (m, unpacked) in unpacked.iter_mut().enumerate() {
                            *unpacked = unpack_step::<P>(panel(m).add(codes), S);
                        }
                        for n in 0..N {
                            let (high, low) = x.unit(first + n, group, GROUP).values;
                            let four = Four::at(high.add(4 * S), low.add(4 * S));
                            for m in 0..M {
                                products[which][m][n].add(unpacked[m], four);
                            }
                        }
                    });
                    if whole {
                        for (m, half) in (0..M * halves).map(|i| (i / halves, i % halves)) {
                            let head = P::Scales::head(scales(m));
                            let at = i * (unit / GROUP * halves) + g * halves + half;
                            let (scale, offset) = P::Scales::integer_scale(scales(m), head, at);
                            for n in 0..N {
                                let x = x.unit(first + n, group * halves + half, GROUP / halves);
                                let all = added(&products[half * ways..][..ways], m, n);
                                let all = less::<P>(all, minus(x.minus, GROUP / halves));
                                scaled[m][n].add::<P>(_mm512_mullo_epi32(all, scale));
                                sums[m][n] = shifted::<P>(sums[m][n], offset, x.sum);
                            }
                        }
                    }
                }
                if whole {
                    let at = block * (P::LEN / unit) + i;
                    for (m, n) in (0..M * N).map(|i| (i / N, i % N)) {
                        let (scale, _) = P::Scales::head(scales(m));
                        let x = x.unit(first + n, at, unit);
                        sums[m][n] = scaled[m][n].joined::<P>(sums[m][n], scale, x.scale);
                    }
                    continue;
                }
                let at = block * (P::LEN / unit) + i * unit.max(GROUP) / unit;
                for (m, half) in (0..M * halves).map(|i| (i / halves, i % halves)) {
                    let head = P::Scales::head(scales(m));
                    let scales = P::Scales::at(scales(m), head, i * unit.max(GROUP) / unit + half);
                    for n in 0..N {
                        let x = x.unit(first + n, at + half, unit);
                        let all = added(&products[half * ways..][..ways], m, n);
                        let all = less::<P>(all, minus(x.minus, unit));
                        sums[m][n] = joined::<P>(sums[m][n], all, scales, x.scale, x.sum);
                    }
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (n, sums) in sums.into_iter().enumerate() {
                write(sums, index + m, rows, first + n, to);
            }
        }
    }
    N
}

/// The sum of several accumulators for one token, both planes.
#[inline(always)]
unsafe fn added<const M: usize, const N: usize>(
    products: &[[[Products; N]; M]],
    m: usize,
    n: usize,
) -> __m512i {
    // SAFETY: AVX-512 is enabled.
    unsafe {
        let mut all = products[0][m][n];
        for other in &products[1..] {
            all.join(other[m][n]);
        }
        all.all()
    }
}

/// Products without the bias of the codes, given the negated sum of their activations.
#[inline(always)]
unsafe fn less<P: Packing>(products: __m512i, minus: i32) -> __m512i {
    let Some(excess) = P::EXCESS else { return products };
    // SAFETY: AVX-512 is enabled.
    unsafe { _mm512_add_epi32(products, _mm512_set1_epi32(minus << excess)) }
}

/// Prefetches what follows a group's codes, in this panel of `each` lines or in the `M`th after it.
#[inline(always)]
pub(crate) unsafe fn ahead<P: Packing, const M: usize>(panel: *const Line, codes: usize, each: usize) {
    let next = codes + AHEAD / M;
    let next = if next < each { next } else { next + (M - 1) * each };
    for line in 0..group_lines::<P>() {
        // SAFETY: a prefetch reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(panel.wrapping_add(next + line).cast()) };
    }
}

/// Writes the results of a panel for one token, one per row.
///
/// # Safety
/// No other thread accesses these rows before the next barrier; AVX-512 is enabled.
#[inline(always)]
pub(crate) unsafe fn write(sums: __m512, panel: usize, rows: usize, token: usize, to: &Target<'_>) {
    let done = panel * PANEL;
    let mut results = [0.0; PANEL];
    // SAFETY: the contract of this function.
    unsafe {
        _mm512_storeu_ps(results.as_mut_ptr(), sums);
        to.skip(done).write(token, results[..PANEL.min(rows - done)].iter());
    }
}

/// The negated sum of a unit's activations.
#[inline(always)]
pub(crate) unsafe fn minus(parts: *const i32, unit: usize) -> i32 {
    // SAFETY: a unit has these parts.
    (0..unit.div_ceil(GROUP)).map(|i| unsafe { *parts.add(i) }).sum()
}

/// Four activations in every lane, both planes.
#[derive(Clone, Copy)]
struct Four(__m512i, __m512i);

impl Four {
    #[inline(always)]
    unsafe fn at(high: *const i8, low: *const i8) -> Four {
        // SAFETY: four activations are readable at each; AVX-512 is enabled.
        let four = |p: *const i8| unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) };
        Four(four(high), four(low))
    }
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
        // SAFETY: AVX-512 is enabled.
        unsafe { Products { above: _mm512_setzero_si512(), below: _mm512_setzero_si512() } }
    }

    /// Four columns of each row.
    #[inline(always)]
    unsafe fn add(&mut self, codes: __m512i, x: Four) {
        // SAFETY: AVX-512 VNNI is enabled.
        unsafe {
            self.above = _mm512_dpbusd_epi32(self.above, codes, x.0);
            self.below = _mm512_dpbusd_epi32(self.below, codes, x.1);
        }
    }

    #[inline(always)]
    unsafe fn join(&mut self, other: Products) {
        // SAFETY: AVX-512 is enabled.
        unsafe {
            self.above = _mm512_add_epi32(self.above, other.above);
            self.below = _mm512_add_epi32(self.below, other.below);
        }
    }

    #[inline(always)]
    unsafe fn all(&self) -> __m512i {
        // SAFETY: AVX-512 is enabled.
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(self.above), self.below) }
    }
}

/// Bits of a lower digit.
pub(crate) const DIGIT: u32 = 7;

/// The products of a unit whose codes were multiplied by the integer scales of their half groups: as one
/// number, or as two digits.
#[derive(Clone, Copy)]
pub(crate) struct IntegerScaled {
    pub(crate) all: __m512i,
    pub(crate) lower: __m512i,
}

impl IntegerScaled {
    #[inline(always)]
    unsafe fn none() -> IntegerScaled {
        // SAFETY: AVX-512 is enabled.
        unsafe { IntegerScaled { all: _mm512_setzero_si512(), lower: _mm512_setzero_si512() } }
    }

    /// Those of a half group.
    #[inline(always)]
    unsafe fn add<P: Packing>(&mut self, products: __m512i) {
        // SAFETY: AVX-512 is enabled.
        unsafe {
            if P::Scales::TWO_DIGITS {
                let lower = _mm512_and_si512(products, _mm512_set1_epi32((1 << DIGIT) - 1));
                self.lower = _mm512_add_epi32(self.lower, lower);
                self.all = _mm512_add_epi32(self.all, _mm512_srai_epi32::<DIGIT>(products));
            } else {
                self.all = _mm512_add_epi32(self.all, products);
            }
        }
    }

    /// Multiplies by the scale and adds to the sum. Digits do not depend on the order of summation.
    #[inline(always)]
    pub(crate) unsafe fn joined<P: Packing>(self, sum: __m512, scale: __m512, x_scale: *const f32) -> __m512 {
        // SAFETY: the caller's pointer is readable; AVX-512 is enabled.
        unsafe {
            if !P::Scales::TWO_DIGITS {
                return scaled(sum, self.all, scale, x_scale);
            }
            let upper = _mm512_add_epi32(self.all, _mm512_srai_epi32::<DIGIT>(self.lower));
            let lower = _mm512_and_si512(self.lower, _mm512_set1_epi32((1 << DIGIT) - 1));
            let larger = _mm512_mul_ps(scale, _mm512_set1_ps((1 << DIGIT) as f32));
            scaled(scaled(sum, upper, larger, x_scale), lower, scale, x_scale)
        }
    }
}

/// Adds a group's products times their scale, and its offset, to the sum.
#[inline(always)]
pub(crate) unsafe fn joined<P: Packing>(
    sum: __m512,
    products: __m512i,
    (scale, offset): (__m512, __m512),
    x_scale: *const f32,
    x_sum: *const f32,
) -> __m512 {
    // SAFETY: the contract of this function.
    unsafe { shifted::<P>(scaled(sum, products, scale, x_scale), offset, x_sum) }
}

/// Adds products times their scale to the sum.
#[inline(always)]
pub(crate) unsafe fn scaled(sum: __m512, products: __m512i, scale: __m512, x_scale: *const f32) -> __m512 {
    // SAFETY: the caller's pointer is readable; AVX-512 is enabled.
    unsafe {
        let factor = _mm512_mul_ps(scale, _mm512_set1_ps(*x_scale));
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), factor, sum)
    }
}

/// Adds an offset to the sum, if there are offsets.
#[inline(always)]
pub(crate) unsafe fn shifted<P: Packing>(sum: __m512, offset: __m512, x_sum: *const f32) -> __m512 {
    // SAFETY: the caller's pointer is readable; AVX-512 is enabled.
    unsafe { if P::Scales::OFFSETS { _mm512_fmadd_ps(offset, _mm512_set1_ps(*x_sum), sum) } else { sum } }
}
