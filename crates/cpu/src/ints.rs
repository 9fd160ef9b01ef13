//! Activations as integers: 16 bits in two int8 planes, in blocks of 32 with one scale each.
//!
//! `x = scale * (256 * high + low)`. Eight bits alone move real answers (a mean KL above 3e-3 on a small model
//! with large outliers); the second plane costs one more integer product and makes the error vanish.

use tern_quant::INT_BLOCK;

use crate::shared::Shared;

/// Values that share one entry of [`Ints::sums16`].
pub(crate) const SUM_BLOCK: usize = 16;

/// A view of consecutive rows of activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ints<'a> {
    /// Columns of a row; a multiple of 32.
    pub(crate) cols: usize,
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
    /// The same as whole numbers, before the scale. `[rows, cols / 16]`
    pub(crate) whole16: &'a [i32],
}

/// Where rows of activations are quantised to: the same arrays.
pub(crate) struct IntsBuffer {
    high: Shared<i8>,
    low: Shared<i8>,
    scales: Shared<f32>,
    sums32: Shared<f32>,
    sums16: Shared<f32>,
    whole16: Shared<i32>,
}

/// A run of activations to write: 32 and multiples.
pub(crate) struct IntsMut<'a> {
    high: &'a mut [i8],
    low: &'a mut [i8],
    scales: &'a mut [f32],
    sums32: &'a mut [f32],
    sums16: &'a mut [f32],
    whole16: &'a mut [i32],
}

impl IntsBuffer {
    /// Room for `values` activations.
    pub(crate) fn new(values: usize) -> IntsBuffer {
        let n = values.next_multiple_of(INT_BLOCK);
        IntsBuffer {
            high: Shared::new(n),
            low: Shared::new(n),
            scales: Shared::new(n / INT_BLOCK),
            sums32: Shared::new(n / INT_BLOCK),
            sums16: Shared::new(n / SUM_BLOCK),
            whole16: Shared::new(n / SUM_BLOCK),
        }
    }

    /// Bytes of such room.
    pub(crate) fn bytes(values: usize) -> usize {
        2 * values + 4 * (2 * values / INT_BLOCK + 2 * values / SUM_BLOCK)
    }

    /// # Safety
    /// No thread writes the first `rows` rows before the next barrier.
    #[inline(always)]
    pub(crate) unsafe fn view(&self, rows: usize, cols: usize) -> Ints<'_> {
        let n = rows * cols;
        // SAFETY: the caller's promise.
        unsafe {
            Ints {
                cols,
                high: self.high.get(0..n),
                low: self.low.get(0..n),
                scales: self.scales.get(0..n / INT_BLOCK),
                sums32: self.sums32.get(0..n / INT_BLOCK),
                sums16: self.sums16.get(0..n / SUM_BLOCK),
                whole16: self.whole16.get(0..n / SUM_BLOCK),
            }
        }
    }

    /// # Safety
    /// No other thread touches `len` activations from `at` on (both multiples of 32) before the next barrier.
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> IntsMut<'_> {
        let (blocks, halves) =
            (at / INT_BLOCK..(at + len) / INT_BLOCK, at / SUM_BLOCK..(at + len) / SUM_BLOCK);
        // SAFETY: the caller's promise.
        unsafe {
            IntsMut {
                high: self.high.get_mut(at..at + len),
                low: self.low.get_mut(at..at + len),
                scales: self.scales.get_mut(blocks.clone()),
                sums32: self.sums32.get_mut(blocks),
                sums16: self.sums16.get_mut(halves.clone()),
                whole16: self.whole16.get_mut(halves),
            }
        }
    }
}

impl<'a> Ints<'a> {
    /// The rows from `start` on.
    #[inline(always)]
    pub(crate) fn skip(&self, start: usize) -> Ints<'a> {
        let n = start * self.cols;
        Ints {
            cols: self.cols,
            high: &self.high[n..],
            low: &self.low[n..],
            scales: &self.scales[n / INT_BLOCK..],
            sums32: &self.sums32[n / INT_BLOCK..],
            sums16: &self.sums16[n / SUM_BLOCK..],
            whole16: &self.whole16[n / SUM_BLOCK..],
        }
    }
}

/// What 32 activations have in common.
pub(crate) struct BlockSums {
    pub(crate) scale: f32,
    pub(crate) sum32: f32,
    pub(crate) sum16: [f32; 2],
    pub(crate) whole16: [i32; 2],
}

/// Rounds 32 values to the largest of them over 127 * 256. The same at every vector width.
#[inline(always)]
pub(crate) fn quantize_block(
    x: &[f32; INT_BLOCK],
    high: &mut [i8; INT_BLOCK],
    low: &mut [i8; INT_BLOCK],
) -> BlockSums {
    // adding 1.5 * 2^23 rounds to the nearest whole number and leaves it in the low bits
    const ROUND: f32 = 12_582_912.0;
    let mut lanes = [0.0f32; 8];
    for x8 in x.as_chunks::<8>().0 {
        for i in 0..8 {
            lanes[i] = if x8[i].abs() > lanes[i] { x8[i].abs() } else { lanes[i] };
        }
    }
    let largest = lanes.iter().fold(0.0f32, |a, &b| if b > a { b } else { a });
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let scale = largest / (127.0 * 256.0);
    for i in 0..INT_BLOCK {
        let exact = x[i] * inverse;
        let rounded = exact + ROUND;
        high[i] = rounded.to_bits() as i8;
        let rest = ((exact - (rounded - ROUND)) * 256.0).clamp(-127.0, 127.0);
        low[i] = (rest + ROUND).to_bits() as i8;
    }
    let mut whole16 = [0; 2];
    for half in 0..2 {
        let part = half * SUM_BLOCK..(half + 1) * SUM_BLOCK;
        let whole = high[part.clone()].iter().map(|&v| i32::from(v)).sum::<i32>();
        let rest = low[part].iter().map(|&v| i32::from(v)).sum::<i32>();
        whole16[half] = 256 * whole + rest;
    }
    let sum16 = whole16.map(|w| scale * w as f32);
    BlockSums { scale, sum32: sum16[0] + sum16[1], sum16, whole16 }
}

/// All blocks of a run of values.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], out: IntsMut<'_>) {
    let planes =
        out.high.as_chunks_mut::<INT_BLOCK>().0.iter_mut().zip(out.low.as_chunks_mut::<INT_BLOCK>().0);
    let sums = out.sums16.as_chunks_mut::<2>().0.iter_mut().zip(out.whole16.as_chunks_mut::<2>().0);
    let blocks = x.as_chunks::<INT_BLOCK>().0.iter().zip(planes);
    let scales = out.scales.iter_mut().zip(out.sums32);
    for (((x, (high, low)), (scale, sum32)), (sum16, whole16)) in blocks.zip(scales).zip(sums) {
        let block = quantize_block(x, high, low);
        (*scale, *sum32, *sum16, *whole16) = (block.scale, block.sum32, block.sum16, block.whole16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_are_kept() {
        let mut rng = tern_graph::Random::new(7);
        let mut x = rng.normals(256, 1.0);
        x[3] = 50.0; // an outlier must not drown its block
        x[64..96].fill(0.0);
        let buffer = IntsBuffer::new(256);
        // SAFETY: one thread.
        let view = unsafe {
            quantize(&x, buffer.part(0, 256));
            buffer.view(1, 256)
        };
        for (i, x) in x.iter().enumerate() {
            let scale = view.scales[i / 32];
            let got = scale * (256 * i32::from(view.high[i]) + i32::from(view.low[i])) as f32;
            assert!((got - x).abs() <= 1.5 * scale, "{i}: {got} for {x}");
        }
        for (i, part) in x.chunks(16).enumerate() {
            assert!(
                (part.iter().sum::<f32>() - view.sums16[i]).abs() < 16.0 * 1.5 * view.scales[i / 2] + 1e-6
            );
        }
    }
}
