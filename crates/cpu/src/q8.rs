//! Activations as int8: blocks of 32 with one scale each, and the sums that offsets need.

use tern_quant::Q8_BLOCK;

use crate::shared::Shared;

/// Values that share one entry of [`Q8::sums`].
pub(crate) const SUM_BLOCK: usize = 16;

/// A view of consecutive rows of int8 activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q8<'a> {
    /// Columns of a row; a multiple of 32.
    pub(crate) cols: usize,
    /// Codes in -127..=127. `[rows, cols]`
    pub(crate) codes: &'a [i8],
    /// `[rows, cols / 32]`
    pub(crate) scales: &'a [f32],
    /// Scale times the sum of 16 codes. `[rows, cols / 16]`
    pub(crate) sums: &'a [f32],
}

/// Where rows of activations are quantised to. The same three arrays.
pub(crate) struct Q8Buffer {
    codes: Shared<i8>,
    scales: Shared<f32>,
    sums: Shared<f32>,
}

/// Part of a row to write: 32 columns and multiples.
pub(crate) struct Q8Mut<'a> {
    pub(crate) codes: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
}

impl Q8Buffer {
    /// Room for `values` activations.
    pub(crate) fn new(values: usize) -> Q8Buffer {
        let values = values.next_multiple_of(Q8_BLOCK);
        let (scales, sums) = (Shared::new(values / Q8_BLOCK), Shared::new(values / SUM_BLOCK));
        Q8Buffer { codes: Shared::new(values), scales, sums }
    }

    /// # Safety
    /// No thread writes the first `rows` rows before the next barrier.
    pub(crate) unsafe fn view(&self, rows: usize, cols: usize) -> Q8<'_> {
        let n = rows * cols;
        // SAFETY: the caller's promise.
        unsafe {
            Q8 {
                cols,
                codes: self.codes.get(0..n),
                scales: self.scales.get(0..n / Q8_BLOCK),
                sums: self.sums.get(0..n / SUM_BLOCK),
            }
        }
    }

    /// # Safety
    /// No other thread touches `len` activations from `at` on (both multiples of 32) before the next barrier.
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> Q8Mut<'_> {
        // SAFETY: the caller's promise.
        unsafe {
            Q8Mut {
                codes: self.codes.get_mut(at..at + len),
                scales: self.scales.get_mut(at / Q8_BLOCK..(at + len) / Q8_BLOCK),
                sums: self.sums.get_mut(at / SUM_BLOCK..(at + len) / SUM_BLOCK),
            }
        }
    }
}

impl<'a> Q8<'a> {
    /// The rows from `start` on.
    pub(crate) fn skip(&self, start: usize) -> Q8<'a> {
        let n = start * self.cols;
        Q8 {
            cols: self.cols,
            codes: &self.codes[n..],
            scales: &self.scales[n / Q8_BLOCK..],
            sums: &self.sums[n / SUM_BLOCK..],
        }
    }
}

/// Rounds each block of 32 to its largest value over 127. The same on every machine and at every vector width.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], out: Q8Mut<'_>) {
    let blocks = x.chunks_exact(Q8_BLOCK).zip(out.codes.chunks_exact_mut(Q8_BLOCK));
    let scales = out.scales.iter_mut().zip(out.sums.chunks_exact_mut(2));
    for ((x, codes), (scale, sums)) in blocks.zip(scales) {
        let mut lanes = [0.0f32; 8];
        for x8 in x.chunks_exact(8) {
            for i in 0..8 {
                lanes[i] = if x8[i].abs() > lanes[i] { x8[i].abs() } else { lanes[i] };
            }
        }
        let largest = lanes.iter().fold(0.0f32, |a, &b| if b > a { b } else { a });
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        *scale = largest / 127.0;
        for (c, v) in codes.iter_mut().zip(x) {
            // adding and taking away 1.5 * 2^23 rounds to the nearest whole number
            *c = ((v * inverse + 12_582_912.0) - 12_582_912.0) as i32 as i8;
        }
        for (sum, half) in sums.iter_mut().zip(codes.chunks_exact(SUM_BLOCK)) {
            *sum = *scale * half.iter().map(|&c| i32::from(c)).sum::<i32>() as f32;
        }
    }
}
