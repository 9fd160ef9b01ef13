//! Sampling parameters as the kernels read them, and the layout of the kernels' scratch.
//!
//! `sample_best` finds each row's best token, which is all that greedy rows need; `sample_draw` samples
//! for the others. A mask may still be computed when the step starts: packing waits for it, so it comes
//! after the model's launches.

use tern_graph::Sample;

use crate::shared::{ADJUSTED, BLOCK_IDS, BLOCK_RUNS, CHOOSE, GREEDY, MASKED, SampleArgs, SampleRow};

/// Words of a row.
const ROW: usize = size_of::<SampleRow>() / 4;

/// A step's rows of logits, and where token ids are written: addresses on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Row `r` begins `r * stride` floats in.
    pub(crate) logits: u64,
    pub(crate) stride: usize,
    /// What [`pack`] gave.
    pub(crate) words: u64,
    /// One i32 per row.
    pub(crate) chosen: u64,
}

/// The layout of the kernels' scratch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleScratch {
    width: usize,
    /// The most rows of a launch; for more rows both kernels are launched again.
    pub(crate) rows: usize,
}

impl SampleScratch {
    /// For launches of at most `rows` rows of `width` logits.
    pub(crate) fn new(rows: usize, width: usize) -> SampleScratch {
        SampleScratch { width, rows }
    }

    /// Blocks per row: the first dimension of the grid; the second is the launch's rows.
    pub(crate) fn blocks(&self) -> usize {
        self.width.div_ceil(BLOCK_IDS)
    }

    /// Bytes of each array, in their order: arrivals, best, sums, peaks, ties, weights.
    fn sizes(&self) -> [usize; 6] {
        let blocks = self.rows * self.blocks();
        let runs = blocks * BLOCK_RUNS;
        [self.rows * 4, blocks * 8, runs * 8, runs * 4, runs * 4, blocks * BLOCK_IDS * 4]
            .map(|bytes| bytes.next_multiple_of(16))
    }

    /// Bytes in total. They are zero before the first launch; each launch leaves them ready for the next.
    pub(crate) fn bytes(&self) -> usize {
        self.sizes().iter().sum()
    }

    /// The arguments for the rows from `first` on, with the scratch at address `scratch`.
    pub(crate) fn args(&self, scratch: u64, rows: &Rows, first: usize) -> SampleArgs {
        let mut at = scratch;
        let [arrivals, best, sums, peaks, ties, weights] = self.sizes().map(|bytes| {
            at += bytes as u64;
            at - bytes as u64
        });
        SampleArgs {
            logits: rows.logits,
            words: rows.words,
            chosen: rows.chosen,
            arrivals,
            best,
            sums,
            peaks,
            ties,
            weights,
            stride: rows.stride as i64,
            width: self.width as i32,
            first: first as i32,
        }
    }
}

/// Whether a row needs `sample_draw`.
pub(crate) fn draws(sample: &Sample) -> bool {
    !sample.params.is_greedy()
}

/// The parameters of a step's rows: one [`SampleRow`] each, then the lists that they point at.
///
/// Waits for the masks. No token is sampled for a row without a sample.
pub(crate) fn pack<'a>(samples: impl ExactSizeIterator<Item = Option<&'a Sample>>, width: usize) -> Vec<u32> {
    let mut words = vec![0; samples.len() * ROW];
    for (i, sample) in samples.enumerate() {
        if let Some(sample) = sample {
            let row = SampleRow::new(sample, width, &mut words);
            words[i * ROW..][..ROW].copy_from_slice(&bytemuck::cast::<SampleRow, [u32; ROW]>(row));
        }
    }
    words
}

impl SampleRow {
    /// The row; its lists are appended to `words`.
    fn new(sample: &Sample, width: usize, words: &mut Vec<u32>) -> SampleRow {
        let params = &*sample.params;
        let mut row = SampleRow {
            what: CHOOSE | if params.is_greedy() { GREEDY } else { 0 },
            top_k: u32::try_from(params.top_k).unwrap_or(u32::MAX),
            floor: sample.floor(),
            temperature: params.temperature,
            top_p: if params.top_p < 1.0 { params.top_p.max(0.0) } else { 1.0 },
            draw: if sample.draw > 0.0 { sample.draw.min(1.0) } else { 0.0 }, // a NaN is 0
            repetition: params.repetition,
            frequency: params.frequency,
            presence: params.presence,
            ..SampleRow::default()
        };
        if let Some(mask) = &sample.mask {
            let bits = mask.wait().unwrap_or_default(); // a mask that failed allows nothing
            let bits = &bits[..bits.len().min(width.div_ceil(32))];
            row.what |= MASKED;
            (row.mask, row.mask_words) = (words.len() as u32, bits.len() as u32);
            words.extend_from_slice(bits);
        }
        let bias: Vec<(u32, u32)> = sample.added().map(|(id, by)| (id, by.to_bits())).collect();
        if !bias.is_empty() {
            row.what |= ADJUSTED;
            (row.bias, row.bias_count) = put_pairs(words, bias, width);
        }
        if sample.has_penalties() {
            row.what |= ADJUSTED;
            (row.seen, row.seen_count) = put_pairs(words, sample.seen.counts().to_vec(), width);
        }
        row
    }
}

/// Appends pairs of valid ids, sorted by id: gives their index and count. Pairs of one id keep their order.
fn put_pairs(words: &mut Vec<u32>, mut pairs: Vec<(u32, u32)>, width: usize) -> (u32, u32) {
    pairs.retain(|p| (p.0 as usize) < width);
    pairs.sort_by_key(|p| p.0);
    let at = words.len() as u32;
    words.extend(pairs.iter().flat_map(|&(id, value)| [id, value]));
    (at, pairs.len() as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tern_graph::{Mask, Sampling};

    use super::*;

    #[test]
    fn a_row_is_what_the_kernel_reads() {
        let params = Sampling {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.5,
            repetition: 1.1,
            frequency: 0.2,
            presence: 0.3,
            bias: vec![(9, 1.5), (3, -1.0), (9, 2.0)],
            ..Sampling::default()
        };
        let sample = Sample {
            params: Arc::new(params),
            seen: vec![(2, 1), (7, 0), (900, 4)].into(),
            mask: Some(Mask::allowing([1, 33], 40)),
            repetitions: vec![(3, 0.5), (900, 1.0)],
            draw: 0.25,
            ..Sample::default()
        };
        let words = pack([None, Some(&sample)].into_iter(), 40);
        assert_eq!(words[..ROW], [0; ROW]);
        let [half, p, draw, repetition] = [0.5f32, 0.9, 0.25, 1.1].map(f32::to_bits);
        let [frequency, presence, up, down, more, dry] =
            [0.2f32, 0.3, 1.5, -1.0, 2.0, -0.5].map(f32::to_bits);
        let what = CHOOSE | MASKED | ADJUSTED;
        let row = [what, 40, 1 << 29, half, p, draw, repetition, frequency, presence, 42, 2, 34, 4, 32, 2, 0];
        assert_eq!(words[ROW..2 * ROW], row);
        assert_eq!(words[32..34], [2, 2]); // bits 1 and 33
        assert_eq!(words[34..42], [3, down, 3, dry, 9, up, 9, more]);
        assert_eq!(words[42..], [2, 1, 7, 0]);
    }

    #[test]
    fn what_is_off_is_not_sent() {
        let seen = vec![(1, 1)].into();
        let words = pack([Some(&Sample { seen, ..Sample::default() })].into_iter(), 10);
        assert_eq!((words.len(), words[0], words[2]), (ROW, CHOOSE | GREEDY, 1));
        let odd = Sampling { temperature: 1.0, top_p: f32::NAN, ..Sampling::default() };
        let greedy = Sampling { top_k: 1, ..odd.clone() };
        let odd = Sample { draw: f32::NAN, ..odd.into() };
        assert!(draws(&odd) && !draws(&greedy.into()));
        let words = pack([Some(&odd)].into_iter(), 10);
        assert_eq!((words[0], words[4], words[5]), (CHOOSE, 1f32.to_bits(), 0));
    }

    #[test]
    fn a_broken_mask_is_one_that_allows_nothing() {
        let mask = Mask::pending();
        mask.set(Err("too deep".into()));
        let words = pack([Some(&Sample { mask: Some(mask), ..Sample::default() })].into_iter(), 10);
        assert_eq!((words.len(), words[0], words[14]), (ROW, CHOOSE | GREEDY | MASKED, 0));
    }

    #[test]
    fn scratch_is_apart_and_aligned() {
        for (rows, width) in [(1, 1), (3, 4096), (5, 151_936), (64, 300_000)] {
            let room = SampleScratch::new(rows, width);
            let base = 1 << 20;
            let to = Rows { logits: 1, stride: width, words: 2, chosen: 3 };
            let a = room.args(base, &to, 7);
            let blocks = width.div_ceil(4096);
            let ends = [
                (a.arrivals, rows * 4),
                (a.best, rows * blocks * 8),
                (a.sums, rows * blocks * 32 * 8),
                (a.peaks, rows * blocks * 32 * 4),
                (a.ties, rows * blocks * 32 * 4),
                (a.weights, rows * blocks * 4096 * 4),
                (base + room.bytes() as u64, 0),
            ];
            assert_eq!((a.arrivals, a.first, room.blocks()), (base, 7, blocks));
            for pair in ends.windows(2) {
                assert!(pair[0].0 + pair[0].1 as u64 <= pair[1].0 && pair[1].0 % 16 == 0);
            }
        }
    }
}
