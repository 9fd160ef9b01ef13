//! Resizing as Pillow does it, to the bit: two passes over eight bits, with weights of 22 bits. Horizontally
//! first, as all versions before 13 do, with which models were trained, and torchvision.

use std::collections::VecDeque;

use crate::Picture;

/// How a pixel is made of those near it. If a picture becomes smaller, all pixels that become one take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle.
    Bilinear,
    /// A cubic with a = -0.5.
    Bicubic,
    /// Lanczos with three lobes.
    Lanczos,
}

/// Bits of weights after the point.
const BITS: u32 = 32 - 8 - 2;

impl Filter {
    /// How far it reaches, in pixels of the larger picture.
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Filter::Bilinear if x < 1.0 => 1.0 - x,
            Filter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Filter::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Filter::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// The pixels that one pixel of a smaller or larger row is made of.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    let each = |place: usize| {
        let center = (place as f64 + 0.5) * scale;
        // as C casts: towards zero
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weights = (first..end).map(|x| filter.weight((x as f64 - center + 0.5) * (1.0 / stretch)));
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |w: f64| {
            let w = (if sum == 0.0 { w } else { w / sum }) * f64::from(1 << BITS);
            (if w < 0.0 { w - 0.5 } else { w + 0.5 }) as i32
        };
        Taps { first, weights: weights.into_iter().map(fixed).collect() }
    };
    (0..to).map(each).collect()
}

/// The sum of pixels times weights, rounded.
fn rounded(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

impl Picture {
    /// The picture in another size. A side of 0 counts as 1.
    pub fn resized(&self, width: usize, height: usize, filter: Filter) -> Picture {
        let (width, height) = (width.max(1), height.max(1));
        let across = (width != self.width()).then(|| taps(self.width(), width, filter));
        let row = |row: &[u8]| across.as_ref().map_or_else(|| row.to_vec(), |taps| wide(row, taps));
        let rows = self.pixels().chunks_exact(self.width() * 3).map(row);
        if height == self.height() {
            return Picture::of(width, height, rows.flatten().collect());
        }
        // only the rows that one row is made of are kept: a picture may be far higher than wide
        let (mut rows, mut kept, mut dropped) = (rows, VecDeque::new(), 0);
        let (mut pixels, mut sums) = (Vec::with_capacity(width * height * 3), vec![0; width * 3]);
        for Taps { first, weights } in taps(self.height(), height, filter) {
            while dropped + kept.len() < first + weights.len() {
                kept.extend(rows.next());
            }
            kept.drain(..(first - dropped).min(kept.len()));
            dropped = first;
            sums.fill(1 << (BITS - 1));
            for (from, w) in kept.iter().zip(weights) {
                sums.iter_mut().zip(from).for_each(|(sum, p)| *sum += i32::from(*p) * w);
            }
            pixels.extend(sums.iter().map(|sum| rounded(*sum)));
        }
        Picture::of(width, height, pixels)
    }
}

/// A row in another width.
fn wide(row: &[u8], taps: &[Taps]) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(taps.len() * 3);
    for Taps { first, weights } in taps {
        let mut sums = [1 << (BITS - 1); 3];
        for (pixel, w) in row[first * 3..].chunks_exact(3).zip(weights) {
            sums.iter_mut().zip(pixel).for_each(|(sum, p)| *sum += i32::from(*p) * w);
        }
        pixels.extend(sums.map(rounded));
    }
    pixels
}
