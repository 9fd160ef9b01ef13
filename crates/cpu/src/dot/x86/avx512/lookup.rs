//! Products of one-bit panels with one token: four bits of a row look up the sum of their activations.
//!
//! A vector of 32 words indexes a table of 32: the even words one of 16 sums of four columns, the
//! odd words one of four other columns. The integers are those of [`super::packed`], and the same
//! steps follow: the same bits.
//!
//! # Safety
//! Every `unsafe` function of this module requires AVX-512 F, BW, VL, DQ and VNNI, pointers that are valid
//! for what they name (a group's codes, a block's scales, a unit of activations), and that no other thread
//! accesses the rows of `to`.

use std::arch::x86_64::*;

use crate::activations::quantized_rows::QuantizedRows;
use crate::dot::x86::avx512::packed::{ahead, joined, minus, write};
use crate::dot::x86::avx512::packing::{GROUP, Packing, group_lines, lines, place, unit};
use crate::dot::x86::avx512::scaling::Scaling;
use crate::dot::{PANEL, PackedWorkspace, Target};
use crate::memory::lines::Line;

/// Tables of a group: one for each nibble of a word.
const TABLES: usize = 4;
/// Bits of the low plane that activations must not use, so that sums of four fit 16 bits.
const SPARE: u32 = 2;

/// Whether the format has one bit, and the activations are one token's and short enough: they are not if
/// another format reads them too.
#[inline(always)]
pub(crate) fn suits<P: Packing>(x: &QuantizedRows<'_>) -> bool {
    let one_bit = P::LOW == 1 && P::HIGH == 0 && P::TWICE && P::Scales::ONE && P::EXCESS.is_some();
    one_bit && x.rows() == 1 && x.low_bits + SPARE <= 8
}

/// Some panels times one token.
///
/// # Safety
/// AVX-512 BW, VL, DQ and VNNI are enabled.
#[inline(always)]
pub(crate) unsafe fn dot<P: Packing>(
    panels: &[Line],
    rows: usize,
    x: &QuantizedRows<'_>,
    workspace: &mut PackedWorkspace,
    to: &Target<'_>,
) {
    let each = lines::<P>(x.cols);
    assert!(panels.len() == rows.div_ceil(PANEL) * each && x.rows() == 1);
    // SAFETY: panels are whole, and tables are made for all columns.
    unsafe {
        if !workspace.has_tables {
            workspace.tables.resize(x.cols / GROUP * TABLES, Line::default());
            fill(x, &mut workspace.tables);
            workspace.has_tables = true;
        }
        let (count, mut i) = (panels.len() / each, 0);
        while i < count {
            let part = |m: usize| &panels[i * each..(i + m) * each];
            i += match count - i {
                1 => some_panels::<P, 1>(part(1), i, rows, x, &workspace.tables, to),
                2 | 3 => some_panels::<P, 2>(part(2), i, rows, x, &workspace.tables, to),
                _ => some_panels::<P, 4>(part(4), i, rows, x, &workspace.tables, to),
            };
        }
    }
}

/// Makes the tables of all groups.
///
/// Byte `b` of a row's lane holds columns `b`, `b + 4`, ... `b + 28` of its group, so nibble `n` of word `w`
/// is those four from `16 * (n % 2) + 2 * w + n / 2` on.
#[inline(always)]
unsafe fn fill(x: &QuantizedRows<'_>, tables: &mut [Line]) {
    // SAFETY: all groups of `x` are readable and have their tables; AVX-512 BW is enabled.
    unsafe {
        // the first column of each word's four, for nibble 0
        let first = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(2));
        for (group, tables) in tables.chunks_exact_mut(TABLES).enumerate() {
            let (high, low) = x.unit(0, group, GROUP).values;
            let wide = |p: *const i8| _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast()));
            let all = _mm512_add_epi16(_mm512_slli_epi16::<8>(wide(high)), wide(low));
            let x = _mm512_srai_epi16::<SPARE>(all);
            for (n, table) in tables.iter_mut().enumerate() {
                let column = _mm512_add_epi16(first, _mm512_set1_epi16((16 * (n % 2) + n / 2) as i16));
                // the table entries with bit `j`
                let part = |places: u32, j: i16| {
                    _mm512_maskz_permutexvar_epi16(
                        places,
                        _mm512_add_epi16(column, _mm512_set1_epi16(4 * j)),
                        x,
                    )
                };
                let low = _mm512_add_epi16(part(0xAAAA_AAAA, 0), part(0xCCCC_CCCC, 1));
                let high = _mm512_add_epi16(part(0xF0F0_F0F0, 2), part(0xFF00_FF00, 3));
                _mm512_store_si512(table.0.as_mut_ptr().cast(), _mm512_add_epi16(low, high));
            }
        }
    }
}

/// `M` panels, the `index`th and those after it; returns their number.
#[inline(always)]
unsafe fn some_panels<P: Packing, const M: usize>(
    panels: &[Line],
    index: usize,
    rows: usize,
    x: &QuantizedRows<'_>,
    tables: &[Line],
    to: &Target<'_>,
) -> usize {
    let (unit, each) = (unit::<P>(), panels.len() / M);
    // SAFETY: the contract of this function.
    unsafe {
        let panel = |m: usize| panels.as_ptr().add(m * each);
        let (nibble, odd, ones) = (_mm512_set1_epi16(15), _mm512_set1_epi32(16 << 16), _mm512_set1_epi16(1));
        let mut sums = [_mm512_setzero_ps(); M];
        for block in 0..x.cols / P::LEN {
            let (line, scales) = place::<P>(block);
            for i in 0..P::LEN / unit {
                let mut products = [[_mm512_setzero_si512(); 2]; M];
                for g in 0..unit / GROUP {
                    let codes = line + (i * (unit / GROUP) + g) * group_lines::<P>();
                    let tables =
                        tables.as_ptr().add((block * P::LEN / GROUP + i * (unit / GROUP) + g) * TABLES);
                    let tables: [__m512i; TABLES] =
                        std::array::from_fn(|n| _mm512_load_si512(tables.add(n).cast()));
                    for (m, products) in products.iter_mut().enumerate() {
                        ahead::<P, M>(panel(m), codes, each);
                        let codes = panel(m).add(codes);
                        let codes = _mm512_load_si512(codes.cast());
                        let nibbles = [
                            codes,
                            _mm512_srli_epi16::<4>(codes),
                            _mm512_srli_epi16::<8>(codes),
                            _mm512_srli_epi16::<12>(codes),
                        ];
                        for (n, (codes, table)) in nibbles.into_iter().zip(tables).enumerate() {
                            // (codes & 15) | odd
                            let places = _mm512_ternarylogic_epi32::<0xEA>(codes, nibble, odd);
                            let found = _mm512_permutexvar_epi16(places, table);
                            products[n % 2] = _mm512_dpwssd_epi32(products[n % 2], found, ones);
                        }
                    }
                }
                let x = x.unit(0, block * (P::LEN / unit) + i, unit);
                let minus = _mm512_set1_epi32(minus(x.minus, unit));
                for m in 0..M {
                    let scales = panel(m).cast::<u8>().add(scales);
                    let scales = P::Scales::at(scales, P::Scales::head(scales), i);
                    let all = _mm512_add_epi32(products[m][0], products[m][1]);
                    let all = _mm512_add_epi32(_mm512_slli_epi32::<{ SPARE + 1 }>(all), minus);
                    sums[m] = joined::<P>(sums[m], all, scales, x.scale, x.sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            write(sums, index + m, rows, 0, to);
        }
    }
    M
}
