//! How codes of any format lie on the device, and how they get there.
//!
//! Every integer format is `scale * code + offset` for each group of weights, so one layout serves them all: codes in
//! planes of 1, 2, 4 or 8 bits, ordered as the matrix unit's lanes want them, scales and offsets apart as halves.

use half::f16;
use tern_graph::HostTensor;
use tern_quant::{Codec, MAX_BLOCK, MAX_GROUPS, Quant, Unpacked};

/// Columns of one chunk: what a lane holds of a row is 32 of them.
pub(crate) const CHUNK: usize = 128;
/// Rows of one tile.
pub(crate) const TILE: usize = 16;

/// The shape of codes on the device: everything a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    /// Bits of the first plane.
    pub(crate) bits: usize,
    /// Bits of the second plane, or none.
    pub(crate) high: usize,
    /// Weights that share a scale, at most a chunk.
    pub(crate) group: usize,
    /// Groups have offsets.
    pub(crate) offsets: bool,
    /// The code that stands for zero.
    pub(crate) zero: f32,
    /// A stored code is `(code - least) / step`.
    least: i32,
    step: i32,
}

/// Codes that a format's blocks can hold, and whether they have offsets: `(name, least, most, offsets)`.
///
/// TQ2_0, Q2_0 and their kin have a fourth code that files do not use but bytes can hold.
const CODES: [(&str, i32, i32, bool); 23] = [
    ("Q4_0", -8, 7, false),
    ("Q4_1", 0, 15, true),
    ("Q5_0", -16, 15, false),
    ("Q5_1", 0, 31, true),
    ("Q8_0", -128, 127, false),
    ("Q2_K", 0, 3, true),
    ("Q3_K", -4, 3, false),
    ("Q4_K", 0, 15, true),
    ("Q5_K", 0, 31, true),
    ("Q6_K", -32, 31, false),
    ("IQ4_NL", -128, 127, false),
    ("IQ4_XS", -128, 127, false),
    ("TQ1_0", -1, 1, false),
    ("TQ2_0", -1, 2, false),
    ("I2_S", -1, 2, false),
    ("MXFP4", -12, 12, false),
    ("NVFP4", -12, 12, false),
    ("Q1_0", -1, 1, false), // and never 0: one bit
    ("Q2_0", -1, 2, false),
    ("Q2_0_G128", -1, 2, false),
    ("TQ2_0_G128", -1, 1, false),
    ("PQ2_0", -1, 2, false),
    ("PTQ1_0", -1, 1, false),
];

impl Layout {
    /// The layout of a format of codes; none for floats and formats that cannot be run.
    pub(crate) fn of(quant: &Quant) -> Option<Layout> {
        let Codec::Codes { group, .. } = quant.codec else { return None };
        let &(_, least, most, offsets) = CODES.iter().find(|row| row.0 == quant.name)?;
        let step = if quant.name == "Q1_0" { 2 } else { 1 };
        let (bits, high) = match (most - least) / step + 1 {
            0..=2 => (1, 0),
            3..=4 => (2, 0),
            5..=8 => (2, 1),
            9..=16 => (4, 0),
            17..=32 => (4, 1),
            33..=64 => (4, 2),
            _ => (8, 0),
        };
        // where there are offsets, the middle code stands for zero: scale and offset are rounded to halves, and the
        // nearer they are to the weights the less that costs
        let zero = if offsets { ((most - least + 1) / 2) as f32 } else { -(least as f32) / step as f32 };
        Some(Layout { bits, high, group: group.min(CHUNK), offsets, zero, least, step })
    }

    /// Chunks of a row; the last one is filled up with zeros.
    pub(crate) fn chunks(cols: usize) -> usize {
        cols.div_ceil(CHUNK)
    }

    pub(crate) fn groups(&self) -> usize {
        CHUNK / self.group
    }
}

/// A tensor as it goes to the device.
pub(crate) struct Packed {
    pub(crate) layout: Layout,
    /// `[tile][chunk][lane][2 rows][bits]` words.
    pub(crate) codes: Vec<u32>,
    pub(crate) high: Vec<u32>,
    /// `[tile][chunk][8][groups]` pairs of halves, for rows `g` and `g + 8`.
    pub(crate) scales: Vec<u32>,
    pub(crate) offsets: Vec<u32>,
    /// On everything: scales are halves, so their largest is brought near one.
    pub(crate) factor: f32,
}

impl Packed {
    /// Packs a tensor of codes; none if its format has no layout.
    pub(crate) fn new(tensor: &HostTensor) -> Option<Packed> {
        let layout = Layout::of(tensor.quant)?;
        let (tiles, chunks) = (tensor.rows.div_ceil(TILE), Layout::chunks(tensor.cols));
        let lanes = tiles * chunks * 32 * 2;
        let pairs = tiles * chunks * 8 * layout.groups();
        let mut packed = Packed {
            layout,
            codes: vec![0; lanes * layout.bits],
            high: vec![0; lanes * layout.high],
            scales: vec![0; pairs],
            offsets: vec![0; if layout.offsets { pairs } else { 0 }],
            factor: 1.0,
        };
        let largest = each_row(tensor, |row| row.largest());
        packed.factor = if largest > 0.0 { 2f32.powi(largest.log2().ceil() as i32) } else { 1.0 };
        // tiles lie one after the other in every plane, so threads can have some each
        let share = tiles.div_ceil(threads());
        let part = |len: usize| (share * len / tiles).max(1);
        let (codes, high) = (part(packed.codes.len()), part(packed.high.len()));
        let (scales, offsets) = (part(packed.scales.len()), part(packed.offsets.len()));
        let factor = packed.factor;
        let mut high_parts = packed.high.chunks_mut(high);
        let mut offset_parts = packed.offsets.chunks_mut(offsets);
        std::thread::scope(|scope| {
            let parts = packed.codes.chunks_mut(codes).zip(packed.scales.chunks_mut(scales));
            for (i, (codes, scales)) in parts.enumerate() {
                let (high, offsets) =
                    (high_parts.next().unwrap_or_default(), offset_parts.next().unwrap_or_default());
                let mut planes = Planes { layout, codes, high, scales, offsets, factor };
                scope.spawn(move || {
                    let mut row = Row::new(tensor);
                    for r in i * share * TILE..((i + 1) * share * TILE).min(tensor.rows) {
                        planes.put(r - i * share * TILE, chunks, row.read(tensor, r));
                    }
                });
            }
        });
        Some(packed)
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The largest of what `measure` says of every row.
fn each_row(tensor: &HostTensor, measure: impl Fn(&Row) -> f32 + Sync) -> f32 {
    let share = tensor.rows.div_ceil(threads()).max(1);
    std::thread::scope(|scope| {
        let parts = (0..tensor.rows).step_by(share).map(|first| {
            let measure = &measure;
            scope.spawn(move || {
                let mut row = Row::new(tensor);
                let rows = first..(first + share).min(tensor.rows);
                rows.fold(0f32, |most, r| most.max(measure(row.read(tensor, r))))
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().filter_map(|part| part.join().ok()).fold(0.0, f32::max)
    })
}

/// Some tiles of a tensor in the making.
struct Planes<'a> {
    layout: Layout,
    codes: &'a mut [u32],
    high: &'a mut [u32],
    scales: &'a mut [u32],
    offsets: &'a mut [u32],
    factor: f32,
}

impl Planes<'_> {
    /// Puts row `r` of these tiles to its place.
    fn put(&mut self, r: usize, chunks: usize, row: &Row) {
        let Layout { bits, high, group, least, step, .. } = self.layout;
        let (g, second, groups) = (r % 8, r % TILE / 8, self.layout.groups());
        for chunk in 0..chunks {
            let at = r / TILE * chunks + chunk;
            for k in 0..CHUNK.min(row.codes.len() - chunk * CHUNK) {
                let code = ((i32::from(row.codes[chunk * CHUNK + k]) - least) / step) as u32;
                let (pair, lane) = (k / 16 * 2 + k % 4 / 2, g * 4 + k % 16 / 4);
                let place = (at * 32 + lane) * 2 + second;
                set(&mut self.codes[place * bits..], bits, pair, k % 2, code & ((1 << bits) - 1));
                if high > 0 {
                    set(&mut self.high[place * high..], high, pair, k % 2, code >> bits);
                }
            }
            for n in 0..groups {
                let from = (chunk * CHUNK + n * group) / row.group;
                let Some(&scale) = row.scales.get(from) else { continue };
                let (place, shift) = ((at * 8 + g) * groups + n, 16 * second);
                let half = |x: f32| u32::from(f16::from_f32(x / self.factor).to_bits()) << shift;
                self.scales[place] |= half(scale * step as f32);
                if self.layout.offsets {
                    self.offsets[place] |=
                        half(row.offsets[from] + scale * (least as f32 + self.layout.zero));
                }
            }
        }
    }
}

/// Puts a code to its place among the 32 of a lane.
fn set(words: &mut [u32], bits: usize, pair: usize, odd: usize, code: u32) {
    let fields = 16 / bits;
    words[pair / fields] |= code << (bits * (pair % fields) + 16 * odd);
}

/// One row, taken apart.
struct Row {
    codes: Vec<i8>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
    /// Weights a scale, in the format.
    group: usize,
}

impl Row {
    fn new(tensor: &HostTensor) -> Row {
        let group = match tensor.quant.codec {
            Codec::Codes { group, .. } => group,
            _ => CHUNK,
        };
        let groups = tensor.cols / group;
        Row { codes: vec![0; tensor.cols], scales: vec![0.0; groups], offsets: vec![0.0; groups], group }
    }

    fn read(&mut self, tensor: &HostTensor, r: usize) -> &Row {
        let Codec::Codes { group, unpack } = tensor.quant.codec else { return self };
        let (len, bytes) = (tensor.quant.block_len, tensor.quant.block_bytes());
        debug_assert!(len <= MAX_BLOCK && len / group <= MAX_GROUPS);
        let blocks = tensor.row(r).chunks_exact(bytes);
        let groups = len / group;
        let outs = self.codes.chunks_exact_mut(len).zip(self.scales.chunks_exact_mut(groups));
        for ((block, (codes, scales)), offsets) in blocks.zip(outs).zip(self.offsets.chunks_exact_mut(groups))
        {
            unpack(block, tensor.tail(), Unpacked { codes, scales, offsets });
        }
        self
    }

    fn largest(&self) -> f32 {
        let all = self.scales.iter().chain(&self.offsets);
        all.map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::Random;
    use tern_graph::cases::random_tensor;

    use super::*;

    /// What the embed kernel computes.
    fn weight(p: &Packed, chunks: usize, r: usize, k: usize) -> f32 {
        let l = p.layout;
        let get = |words: &[u32], bits: usize, pair: usize, odd: usize| {
            words[pair / (16 / bits)] >> (bits * (pair % (16 / bits)) + 16 * odd) & ((1 << bits) - 1)
        };
        let (at, g, second, inside) = (r / 16 * chunks + k / 128, r % 8, r % 16 / 8, k % 128);
        let (pair, lane) = (inside / 16 * 2 + inside % 4 / 2, g * 4 + inside % 16 / 4);
        let place = (at * 32 + lane) * 2 + second;
        let mut code = get(&p.codes[place * l.bits..], l.bits, pair, k % 2);
        if l.high > 0 {
            code |= get(&p.high[place * l.high..], l.high, pair, k % 2) << l.bits;
        }
        let group = (at * 8 + g) * l.groups() + inside / l.group;
        let half = |words: &[u32]| f16::from_bits((words[group] >> (16 * second)) as u16).to_f32() * p.factor;
        half(&p.scales) * (code as f32 - l.zero) + if l.offsets { half(&p.offsets) } else { 0.0 }
    }

    #[test]
    fn every_format_keeps_its_weights() {
        let rng = &mut Random::new(3);
        for quant in tern_quant::ALL.iter().filter(|q| q.is_runnable()) {
            if !matches!(quant.codec, Codec::Codes { .. }) {
                continue;
            }
            let (rows, cols) = (21, 288usize.next_multiple_of(quant.block_len));
            let tensor = random_tensor("w", quant, rows, cols, rng);
            let packed = Packed::new(&tensor).unwrap_or_else(|| panic!("{quant} has no layout"));
            let want = tensor.to_f32();
            let most = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (i, want) in want.iter().enumerate() {
                let got = weight(&packed, Layout::chunks(cols), i / cols, i % cols);
                assert!((got - want).abs() <= 2e-3 * most, "{quant} at {i}: {got}, want {want}");
            }
        }
    }

    #[test]
    fn codes_of_any_bytes_have_room() {
        let rng = &mut Random::new(4);
        for quant in tern_quant::ALL {
            let (Codec::Codes { group, unpack }, Some(layout)) = (quant.codec, Layout::of(quant)) else {
                continue;
            };
            let most = layout.least + layout.step * ((1 << (layout.bits + layout.high)) - 1);
            for _ in 0..200 {
                let block: Vec<u8> = (0..quant.block_bytes()).map(|_| rng.below(256) as u8).collect();
                let tail = vec![0; quant.tail];
                let n = quant.block_len / group;
                let (mut codes, mut scales, mut offsets) =
                    (vec![0; quant.block_len], vec![0.0; n], vec![0.0; n]);
                unpack(
                    &block,
                    &tail,
                    Unpacked { codes: &mut codes, scales: &mut scales, offsets: &mut offsets },
                );
                let fits = |c: &i8| {
                    (layout.least..=most).contains(&i32::from(*c))
                        && (i32::from(*c) - layout.least) % layout.step == 0
                };
                assert!(codes.iter().all(fits), "{quant}");
            }
        }
    }
}
