//! How codes of any format lie on the device, and how they get there.
//!
//! Every integer format is `scale * code + offset` for each group of weights, so one layout serves them all: records of
//! 16 rows by 128 columns with codes in planes of 1, 2, 4 or 8 bits, ordered as the matrix unit's lanes want them
//! (`kernels/record.cuh`), and scales and offsets behind them as halves.

use half::f16;
use tern_graph::HostTensor;
use tern_quant::{Codes, FieldType, MAX_BLOCK, MAX_GROUPS, Quant, Unpacked};

/// Columns of one chunk: what a lane holds of a row is 32 of them.
pub(crate) const CHUNK: usize = 128;
/// Rows of one tile.
pub(crate) const TILE: usize = 16;

/// The shape of a record: everything a kernel is compiled for, and how codes are stored in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bits of the first plane: the upper ones of a code.
    pub(crate) bits: usize,
    /// Bits of the second plane, or none.
    pub(crate) low: usize,
    /// Weights that share a scale, at most a chunk.
    pub(crate) group: usize,
    /// Groups have offsets.
    pub(crate) offsets: bool,
    /// The code that stands for zero.
    centre: i32,
}

impl Layout {
    /// The layout of a format of codes; `None` for floats and formats that cannot be run.
    pub(crate) fn of(quant: &Quant) -> Option<Layout> {
        let codes = quant.codes()?;
        let (least, most) = (i32::from(codes.least), i32::from(codes.most));
        // with offsets the middle code stands for zero: scale and offset are rounded to halves, and the nearer they are
        // to the weights the less that costs
        let centre = if codes.offsets { least + (most - least + 1) / 2 } else { 0 };
        let holds = |bits: usize| -1 << (bits - 1) <= least - centre && most - centre < 1 << (bits - 1);
        let (bits, low) = match (least, most) {
            (-1, 1) if !codes.offsets && codes.step == 2 => (1, 0), // as bits, see `is_signs`
            (-1, ..=2) if !codes.offsets => (1, 1),
            _ => [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2)]
                .into_iter()
                .find(|(bits, low)| holds(bits + low))
                .unwrap_or((8, 0)),
        };
        Some(Layout { bits, low, group: codes.group.min(CHUNK), offsets: codes.offsets, centre })
    }

    /// Chunks of a row; the last one is filled up with zeros.
    pub(crate) fn chunks(cols: usize) -> usize {
        cols.div_ceil(CHUNK)
    }

    pub(crate) fn groups(&self) -> usize {
        CHUNK / self.group
    }

    /// Codes are signs, or one of -1, 0, 1 and 2: they go through the matrix unit as bits.
    pub(crate) fn is_signs(&self) -> bool {
        self.bits == 1
    }

    /// Bytes of a record.
    pub(crate) fn bytes(&self) -> usize {
        self.offsets_at() + if self.offsets { 32 * self.groups() } else { 0 }
    }

    fn scales_at(&self) -> usize {
        256 * (self.bits + self.low)
    }

    fn offsets_at(&self) -> usize {
        self.scales_at() + 32 * self.groups()
    }

    /// What a code of one is worth as a byte in the matrix unit.
    pub(crate) fn unit(&self) -> f32 {
        if self.is_signs() { 1.0 } else { (1 << (8 - self.bits - self.low)) as f32 }
    }

    /// Codes as they are stored: of one bit, set for -1; of two as bits, one more; others signed, in the low bits.
    fn stored(&self, codes: &[i8], stored: &mut [u8; CHUNK]) {
        let mut each = |f: fn(u8, u8) -> u8, by: i32| {
            stored.iter_mut().zip(codes).for_each(|(s, c)| *s = f(*c as u8, by as u8));
        };
        match (self.is_signs(), self.low) {
            (true, 0) => each(|c, _| c >> 7, 0),
            (true, _) => each(|c, _| c.wrapping_add(1), 0),
            _ => each(u8::wrapping_sub, self.centre),
        }
    }

    /// Puts a row's codes of a chunk to their places in a record that is still empty; `row` is `g` and 0, or `g` and 1 for
    /// `g + 8`.
    fn put(&self, record: &mut [u8], row: (usize, usize), codes: &[u8; CHUNK]) {
        match (self.is_signs(), self.low) {
            (true, 0) => put_bits(record, (1, row), 0, codes),
            (true, _) => {
                put_bits(record, (2, row), 0, codes);
                put_bits(record, (2, row), 1, codes);
            }
            _ => {
                let (upper, lower) = record.split_at_mut(256 * self.bits);
                put_plane(upper, (self.bits, self.low), row, codes);
                put_plane(lower, (self.low, 0), row, codes);
            }
        }
    }
}

/// Bits `down` and above of codes, `bits` of them or none, into a plane.
fn put_plane(plane: &mut [u8], (bits, down): (usize, usize), row: (usize, usize), codes: &[u8; CHUNK]) {
    match bits {
        1 => put_plane_of::<1>(plane, down, row, codes),
        2 => put_plane_of::<2>(plane, down, row, codes),
        4 => put_plane_of::<4>(plane, down, row, codes),
        8 => put_plane_of::<8>(plane, down, row, codes),
        _ => (),
    }
}

/// The same, compiled for so many bits: this is where loading a model spends its time.
fn put_plane_of<const BITS: usize>(
    plane: &mut [u8],
    down: usize,
    (g, second): (usize, usize),
    codes: &[u8; CHUNK],
) {
    let mask = u128::from_le_bytes([((1u32 << BITS) - 1) as u8; 16]);
    let (sixteens, _) = codes.as_chunks::<16>();
    for (n, parts) in sixteens.chunks_exact(8 / BITS).enumerate() {
        let mut words = 0; // sixteen columns at a time, the first ones at the top of their bytes
        for (m, part) in parts.iter().enumerate() {
            words |= (u128::from_le_bytes(*part) >> down & mask) << (8 - BITS * (m + 1));
        }
        let n = second * BITS + n;
        for (q, word) in words.to_le_bytes().as_chunks::<4>().0.iter().enumerate() {
            let lane = g * 4 + q;
            let at = if BITS == 1 { lane * 8 + n * 4 } else { n / 4 * 512 + lane * 16 + n % 4 * 4 };
            plane[at..at + 4].copy_from_slice(word);
        }
    }
}

/// One bit of codes of `bits`, into the words of the lanes that have it.
fn put_bits(
    record: &mut [u8],
    (bits, (g, second)): (usize, (usize, usize)),
    bit: usize,
    codes: &[u8; CHUNK],
) {
    for (i, columns) in codes.as_chunks::<32>().0.iter().enumerate() {
        let mut word = [0; 4];
        for (byte, eight) in word.iter_mut().zip(columns.as_chunks::<8>().0) {
            let ones = u64::from_le_bytes(*eight) >> bit & 0x0101_0101_0101_0101;
            *byte = (ones.wrapping_mul(0x8040_2010_0804_0201) >> 56) as u8; // the first one on top
        }
        let (q, half) = if bits == 1 { (i, 0) } else { (i % 2 + 2 * bit, i / 2) };
        let at = (((g * 4 + q) * bits + half) * 2 + second) * 4;
        record[at..at + 4].copy_from_slice(&word);
    }
}

/// How a tensor is packed: `[tile][chunk]` records.
pub(crate) struct Packing<'a> {
    pub(crate) layout: Layout,
    /// On everything: scales are halves, so their largest is brought near one.
    pub(crate) factor: f32,
    tensor: &'a HostTensor,
    chunks: usize,
}

impl Packing<'_> {
    /// None if the tensor's format has no layout.
    pub(crate) fn new(tensor: &HostTensor) -> Option<Packing<'_>> {
        let layout = Layout::of(tensor.quant)?;
        // scales that are halves in the file stay what they are, and need not be looked at
        let largest = if has_half_scales(tensor.quant) && !layout.offsets {
            1.0
        } else {
            each_row(tensor, |row| row.largest(&layout))
        };
        let factor = if largest > 0.0 { 2f32.powi(largest.log2().ceil() as i32) } else { 1.0 };
        Some(Packing { layout, factor, tensor, chunks: Layout::chunks(tensor.cols) })
    }

    /// Bytes of a tile, and of all.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.chunks * self.layout.bytes()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tensor.rows.div_ceil(TILE) * self.tile_bytes()
    }

    /// Packs tiles from `first` on, as many as there is room for; the threads share them.
    pub(crate) fn fill(&self, first: usize, records: &mut [u8]) {
        let share = (records.len() / self.tile_bytes()).div_ceil(threads()).max(1);
        std::thread::scope(|scope| {
            for (i, part) in records.chunks_mut(share * self.tile_bytes()).enumerate() {
                scope.spawn(move || {
                    part.fill(0);
                    let (mut row, first) = (Row::new(self.tensor), (first + i * share) * TILE);
                    let rows = part.len() / self.tile_bytes() * TILE;
                    for r in first..(first + rows).min(self.tensor.rows) {
                        self.put(part, r - first, row.read(self.tensor, r));
                    }
                });
            }
        });
    }

    /// Puts row `r` of some tiles to its place.
    fn put(&self, records: &mut [u8], r: usize, row: &Row) {
        let layout = &self.layout;
        let (g, second, groups) = (r % 8, r % TILE / 8, layout.groups());
        let first = r / TILE * self.chunks;
        let all = records.chunks_exact_mut(layout.bytes()).skip(first).take(self.chunks).enumerate();
        for (chunk, record) in all {
            let codes = &row.codes[chunk * CHUNK..];
            let mut stored = [0; CHUNK];
            layout.stored(&codes[..codes.len().min(CHUNK)], &mut stored);
            layout.put(record, (g, second), &stored);
            for n in 0..groups {
                let from = (chunk * CHUNK + n * layout.group) / row.group;
                let Some(&scale) = row.scales.get(from) else { continue };
                let place = (g * groups + n) * 4 + 2 * second;
                let mut half = |at: usize, x: f32| {
                    record[at + place..][..2].copy_from_slice(&f16::from_f32(x / self.factor).to_le_bytes());
                };
                half(layout.scales_at(), scale);
                if layout.offsets {
                    half(layout.offsets_at(), row.offsets[from] + scale * layout.centre as f32);
                }
            }
        }
    }
}

/// The scale of a block is a half of it.
fn has_half_scales(quant: &Quant) -> bool {
    let Some(codes) = quant.codes() else { return false };
    codes.group == quant.block_len && quant.fields.iter().any(|field| field.ty == FieldType::F16)
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
        let group = tensor.quant.codes().map_or(CHUNK, |codes| codes.group);
        let groups = tensor.cols / group;
        Row { codes: vec![0; tensor.cols], scales: vec![0.0; groups], offsets: vec![0.0; groups], group }
    }

    fn read(&mut self, tensor: &HostTensor, r: usize) -> &Row {
        let Some(&Codes { group, unpack, .. }) = tensor.quant.codes() else { return self };
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

    /// The largest scale or offset as they are stored.
    fn largest(&self, layout: &Layout) -> f32 {
        let pairs = self.scales.iter().zip(&self.offsets);
        let most = |(s, o): (&f32, &f32)| s.abs().max((o + s * layout.centre as f32).abs());
        pairs.map(most).filter(|x| x.is_finite()).fold(0.0, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::Random;
    use tern_graph::cases::random_tensor;

    use super::*;

    /// Byte and shift of column `k`'s code in each plane, for row `g` or `g + 8`, as `kernels/record.cuh` has it.
    fn places(l: &Layout, row: (usize, usize), k: usize) -> [(usize, usize); 2] {
        let bit_place = |bits: usize, q: usize| {
            let half = if bits == 2 { k / 64 } else { 0 };
            ((((row.0 * 4 + q) * bits + half) * 2 + row.1) * 4 + k % 32 / 8, 7 - k % 8)
        };
        let place = |bits: usize, plane: usize| {
            let (j, q, i, per) = (k / 16, k / 4 % 4, k % 4, 8 / bits);
            let (lane, word) = (row.0 * 4 + q, row.1 * bits + j / per);
            let at = if bits == 1 { lane * 8 + word * 4 } else { word / 4 * 512 + lane * 16 + word % 4 * 4 };
            (plane + at + i, 8 - bits * (j % per + 1))
        };
        match (l.is_signs(), l.low) {
            (true, 0) => [bit_place(1, k / 32), (0, 0)],
            (true, _) => [1, 0].map(|bit| bit_place(2, k % 64 / 32 + 2 * bit)),
            (_, 0) => [place(l.bits, 0), (0, 0)],
            _ => [place(l.bits, 0), place(l.low, 256 * l.bits)],
        }
    }

    /// What the embed kernel computes.
    fn weight((p, records): (&Packing<'_>, &[u8]), chunks: usize, r: usize, k: usize) -> f32 {
        let l = p.layout;
        let record = &records[(r / 16 * chunks + k / 128) * l.bytes()..][..l.bytes()];
        let (row, k) = ((r % 8, r % 16 / 8), k % 128);
        let get =
            |(at, shift): (usize, usize), bits: usize| i32::from(record[at] >> shift) & ((1 << bits) - 1);
        let [first, second] = places(&l, row, k);
        let code = get(first, l.bits) << l.low | if l.low > 0 { get(second, l.low) } else { 0 };
        let all = l.bits + l.low;
        let code = match (l.is_signs(), l.low) {
            (true, 0) => 1 - 2 * code,
            (true, _) => code - 1,
            _ if code >> (all - 1) == 1 => code - (1 << all),
            _ => code,
        };
        let at = (row.0 * l.groups() + k / l.group) * 4 + 2 * row.1;
        let half =
            |from: usize| f16::from_le_bytes([record[from + at], record[from + at + 1]]).to_f32() * p.factor;
        half(l.scales_at()) * code as f32 + if l.offsets { half(l.offsets_at()) } else { 0.0 }
    }

    #[test]
    fn every_format_keeps_its_weights() {
        let rng = &mut Random::new(3);
        for quant in tern_quant::ALL.iter().filter(|q| q.codes().is_some()) {
            let (rows, cols) = (21, 288usize.next_multiple_of(quant.block_len));
            let tensor = random_tensor("w", quant, rows, cols, rng);
            let packing = Packing::new(&tensor).unwrap_or_else(|| panic!("{quant} has no layout"));
            let mut records = vec![0xff; packing.bytes()];
            let (first, rest) = records.split_at_mut(packing.tile_bytes()); // piece by piece
            packing.fill(0, first);
            packing.fill(1, rest);
            let want = tensor.to_f32();
            let most = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (i, want) in want.iter().enumerate() {
                let got = weight((&packing, &records), Layout::chunks(cols), i / cols, i % cols);
                assert!((got - want).abs() <= 2e-3 * most, "{quant} at {i}: {got}, want {want}");
            }
        }
    }

    #[test]
    fn codes_of_any_bytes_have_room() {
        let rng = &mut Random::new(4);
        for quant in tern_quant::ALL {
            let (Some(&Codes { group, unpack, .. }), Some(layout)) = (quant.codes(), Layout::of(quant))
            else {
                continue;
            };
            let half = 1 << (layout.bits + layout.low - 1);
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
                let fits = |c: &i8| match (layout.is_signs(), layout.low) {
                    (true, 0) => c.abs() == 1,
                    (true, _) => (-1..=2).contains(c),
                    _ => (-half..half).contains(&(i32::from(*c) - layout.centre)),
                };
                assert!(codes.iter().all(fits), "{quant}");
            }
        }
    }
}
