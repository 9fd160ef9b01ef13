//! Quantized activations: 16 bits in two int8 planes, in blocks of 32 with one scale each. Neighbouring
//! blocks share the scale if the weights' groups are as wide: their products can then be summed as integers.
//!
//! `x = scale * (256 * high + low)`. Eight bits alone change real results (a mean KL above 3e-3 on a small
//! model with large outliers); the second plane costs one more integer product and makes the error
//! negligible. With codes of four bits or one bit the low plane has four or six bits, so that one product of
//! the matrix unit covers both.

use tern_quant::INT_BLOCK;

use crate::memory::lines::Refused;
use crate::memory::shared::Shared;

/// Values that share one entry of [`QuantizedRows::sums16`].
pub(crate) const SUM_BLOCK: usize = 16;

/// How activations are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// Columns that share a scale: 32, 64 or 128.
    pub(crate) span: usize,
    /// Bits of the low plane that are used: the upper ones, at most eight.
    pub(crate) low: u32,
}

impl Rounding {
    /// Steps of the low plane per step of the high one.
    pub(crate) fn steps(self) -> f32 {
        (1u32 << self.low) as f32
    }
}

/// A view of consecutive rows of activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedRows<'a> {
    /// Columns per row; a multiple of 32.
    pub(crate) cols: usize,
    /// Bits of the low plane that are used.
    pub(crate) low_bits: u32,
    /// `[rows, cols]`, in -127..=127.
    pub(crate) high: &'a [i8],
    /// `[rows, cols]`, in -127..=127.
    pub(crate) low: &'a [i8],
    /// `[rows, cols / 32]`
    pub(crate) scales: &'a [f32],
    /// Sum of 32 activations. `[rows, cols / 32]`
    pub(crate) sums32: &'a [f32],
    /// Sum of 16 activations. `[rows, cols / 16]`
    pub(crate) sums16: &'a [f32],
    /// The negated sum of 32 as an integer, before the scale. `[rows, cols / 32]`
    pub(crate) minus32: &'a [i32],
    /// The same of 16. `[rows, cols / 16]`
    pub(crate) minus16: &'a [i32],
}

/// Memory for quantized rows: the same arrays.
pub(crate) struct QuantizedRowsBuffer {
    high: Shared<i8>,
    low: Shared<i8>,
    scales: Shared<f32>,
    sums32: Shared<f32>,
    sums16: Shared<f32>,
    minus32: Shared<i32>,
    minus16: Shared<i32>,
}

/// A run of activations to write: a multiple of 32.
pub(crate) struct QuantizedRowsMut<'a> {
    pub(crate) high: &'a mut [i8],
    pub(crate) low: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums32: &'a mut [f32],
    pub(crate) sums16: &'a mut [f32],
    pub(crate) minus32: &'a mut [i32],
    pub(crate) minus16: &'a mut [i32],
}

impl QuantizedRowsBuffer {
    /// Memory for `values` activations.
    pub(crate) fn new(values: usize) -> Result<QuantizedRowsBuffer, Refused> {
        let n = values.next_multiple_of(INT_BLOCK);
        Ok(QuantizedRowsBuffer {
            high: Shared::new(n)?,
            low: Shared::new(n)?,
            scales: Shared::new(n / INT_BLOCK)?,
            sums32: Shared::new(n / INT_BLOCK)?,
            sums16: Shared::new(n / SUM_BLOCK)?,
            minus32: Shared::new(n / INT_BLOCK)?,
            minus16: Shared::new(n / SUM_BLOCK)?,
        })
    }

    /// Bytes of memory for `values` activations.
    pub(crate) fn bytes(values: usize) -> usize {
        2 * values + 4 * (3 * values / INT_BLOCK + 2 * values / SUM_BLOCK)
    }

    /// # Safety
    /// No thread writes the first `rows` rows before the next barrier.
    #[inline(always)]
    pub(crate) unsafe fn view(&self, rows: usize, cols: usize, low_bits: u32) -> QuantizedRows<'_> {
        let n = rows * cols;
        // SAFETY: the contract of this function.
        unsafe {
            QuantizedRows {
                cols,
                low_bits,
                high: self.high.get(0..n),
                low: self.low.get(0..n),
                scales: self.scales.get(0..n / INT_BLOCK),
                sums32: self.sums32.get(0..n / INT_BLOCK),
                sums16: self.sums16.get(0..n / SUM_BLOCK),
                minus32: self.minus32.get(0..n / INT_BLOCK),
                minus16: self.minus16.get(0..n / SUM_BLOCK),
            }
        }
    }

    /// `len` columns from `col` on of a row.
    ///
    /// # Safety
    /// No other thread accesses these columns (`col` and `len` are multiples of 32) before the next barrier.
    pub(crate) unsafe fn part(
        &self,
        cols: usize,
        row: usize,
        col: usize,
        len: usize,
    ) -> QuantizedRowsMut<'_> {
        let at = row * cols + col;
        let (blocks, halves) =
            (at / INT_BLOCK..(at + len) / INT_BLOCK, at / SUM_BLOCK..(at + len) / SUM_BLOCK);
        // SAFETY: the contract of this function.
        unsafe {
            QuantizedRowsMut {
                high: self.high.get_mut(at..at + len),
                low: self.low.get_mut(at..at + len),
                scales: self.scales.get_mut(blocks.clone()),
                sums32: self.sums32.get_mut(blocks.clone()),
                sums16: self.sums16.get_mut(halves.clone()),
                minus32: self.minus32.get_mut(blocks),
                minus16: self.minus16.get_mut(halves),
            }
        }
    }
}

impl<'a> QuantizedRows<'a> {
    /// Number of rows.
    #[inline(always)]
    pub(crate) fn rows(&self) -> usize {
        self.high.len() / self.cols
    }

    /// The activations of unit `i` of a row: 16 columns, or a multiple of 32.
    ///
    /// # Safety
    /// The row has this unit.
    #[inline(always)]
    pub(crate) unsafe fn unit(&self, row: usize, i: usize, len: usize) -> Unit {
        let block = row * (self.cols / INT_BLOCK) + i * len / INT_BLOCK;
        let plane = row * self.cols + i * len;
        // SAFETY: the contract of this function.
        unsafe {
            let (sum, minus) = if len == SUM_BLOCK {
                let half = row * (self.cols / SUM_BLOCK) + i;
                (self.sums16.as_ptr().add(half), self.minus16.as_ptr().add(half))
            } else {
                (self.sums32.as_ptr().add(block), self.minus32.as_ptr().add(block))
            };
            let values = (self.high.as_ptr().add(plane), self.low.as_ptr().add(plane));
            Unit { values, scale: self.scales.as_ptr().add(block), sum, minus }
        }
    }

    /// The rows from `start` on.
    #[inline(always)]
    pub(crate) fn skip(&self, start: usize) -> QuantizedRows<'a> {
        let n = start * self.cols;
        QuantizedRows {
            cols: self.cols,
            low_bits: self.low_bits,
            high: &self.high[n..],
            low: &self.low[n..],
            scales: &self.scales[n / INT_BLOCK..],
            sums32: &self.sums32[n / INT_BLOCK..],
            sums16: &self.sums16[n / SUM_BLOCK..],
            minus32: &self.minus32[n / INT_BLOCK..],
            minus16: &self.minus16[n / SUM_BLOCK..],
        }
    }
}

/// Pointers to the high and the low plane of some activations, and to the scale and sums of
/// each 32 (or 16) of them.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    pub(crate) values: (*const i8, *const i8),
    pub(crate) scale: *const f32,
    pub(crate) sum: *const f32,
    pub(crate) minus: *const i32,
}

/// Scale and sums of 32 activations.
pub(crate) struct BlockSums {
    pub(crate) scale: f32,
    pub(crate) sum32: f32,
    pub(crate) sum16: [f32; 2],
    pub(crate) minus16: [i32; 2],
}

/// The largest magnitude; NaN counts as larger than infinity. So the scale of values that are not finite is
/// not finite either, nor is any result computed with it.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    // the bits of magnitudes are ordered like the magnitudes; a plain loop, which the compiler vectorises
    let magnitudes = x.iter().map(|x| (x.to_bits() & 0x7FFF_FFFF) as i32);
    f32::from_bits(magnitudes.fold(0, i32::max) as u32)
}

/// Quantizes 32 values in steps of `largest / (127 * 256)`. The same at every vector width, except for the
/// integers of values that are not finite, whose scale is not finite either.
#[inline(always)]
pub(crate) fn quantize_block(
    largest: f32,
    rounding: Rounding,
    x: &[f32; INT_BLOCK],
    high: &mut [i8; INT_BLOCK],
    low: &mut [i8; INT_BLOCK],
) -> BlockSums {
    // adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits
    const ROUND: f32 = 12_582_912.0;
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let scale = largest / (127.0 * 256.0);
    let steps = inverse * rounding.steps();
    for i in 0..INT_BLOCK {
        let whole = (x[i] * steps + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
        let above = (whole + (1 << rounding.low >> 1)) >> rounding.low;
        high[i] = above as i8;
        // never -128, which some instructions cannot negate
        low[i] = ((whole - (above << rounding.low)).max(-127) << (8 - rounding.low)) as i8;
    }
    let mut whole16 = [0; 2];
    for half in 0..2 {
        let part = half * SUM_BLOCK..(half + 1) * SUM_BLOCK;
        let whole = high[part.clone()].iter().map(|&v| i32::from(v)).sum::<i32>();
        let rest = low[part].iter().map(|&v| i32::from(v)).sum::<i32>();
        whole16[half] = 256 * whole + rest;
    }
    let sum16 = whole16.map(|w| scale * w as f32);
    BlockSums { scale, sum32: sum16[0] + sum16[1], sum16, minus16: whole16.map(|w| -w) }
}

/// Quantizes a run of values, with one scale per span.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], rounding: Rounding, out: QuantizedRowsMut<'_>) {
    let planes =
        out.high.as_chunks_mut::<INT_BLOCK>().0.iter_mut().zip(out.low.as_chunks_mut::<INT_BLOCK>().0);
    let sums = out.sums16.as_chunks_mut::<2>().0.iter_mut().zip(out.minus16.as_chunks_mut::<2>().0);
    let scales = out.scales.iter_mut().zip(out.sums32.iter_mut().zip(out.minus32));
    let mut blocks = planes.zip(scales).zip(sums);
    for x in x.chunks(rounding.span) {
        let largest = largest(x);
        for x in x.as_chunks::<INT_BLOCK>().0 {
            let Some((((high, low), (scale, (sum32, minus32))), (sum16, minus16))) = blocks.next() else {
                return;
            };
            let block = quantize_block(largest, rounding, x, high, low);
            (*scale, *sum32, *sum16, *minus16) = (block.scale, block.sum32, block.sum16, block.minus16);
            *minus32 = block.minus16[0] + block.minus16[1];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantization_keeps_the_bits_of_both_planes() {
        [8, 6, 4].into_iter().for_each(bits_are_kept);
    }

    #[test]
    fn what_is_not_finite_makes_the_scale_of_its_span_so() {
        let x = tern_graph::Random::new(8).normals(256, 1.0);
        let buffer = QuantizedRowsBuffer::new(256).unwrap();
        for (bad, at) in [(f32::NAN, 5), (-f32::NAN, 100), (f32::INFINITY, 64), (f32::NEG_INFINITY, 255)] {
            for kernels in crate::available() {
                let mut x = x.clone();
                x[at] = bad;
                // SAFETY: one thread.
                let view = unsafe {
                    (kernels.quantize)(&x, Rounding { span: 64, low: 8 }, buffer.part(256, 0, 0, 256));
                    buffer.view(1, 256, 8)
                };
                for (block, scale) in view.scales.iter().enumerate() {
                    assert_eq!(scale.is_finite(), block / 2 != at / 64, "{kernels:?}: {bad} at {at}");
                }
            }
        }
    }

    fn bits_are_kept(low: u32) {
        let error = 1.5 * f32::from(1u16 << (8 - low)); // of the last bit
        let mut rng = tern_graph::Random::new(7);
        let mut x = rng.normals(256, 1.0);
        x[3] = 50.0; // an outlier must not cost its block precision
        x[64..96].fill(0.0);
        let buffer = QuantizedRowsBuffer::new(256).unwrap();
        // SAFETY: one thread.
        let view = unsafe {
            quantize(&x, Rounding { span: 32, low }, buffer.part(256, 0, 0, 256));
            buffer.view(1, 256, 8)
        };
        for (i, x) in x.iter().enumerate() {
            let scale = view.scales[i / 32];
            let got = scale * (256 * i32::from(view.high[i]) + i32::from(view.low[i])) as f32;
            assert!((got - x).abs() <= error * scale, "{i}: {got} for {x}");
        }
        for (i, part) in x.chunks(16).enumerate() {
            assert!(
                (part.iter().sum::<f32>() - view.sums16[i]).abs() < 16.0 * error * view.scales[i / 2] + 1e-6
            );
        }
    }
}
