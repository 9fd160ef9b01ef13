//! Packs a tensor into records, with all processors.

use std::panic::resume_unwind;

use half::f16;
use tern_graph::HostTensor;
use tern_quant::{Codec, Codes, F16, FieldType, MAX_BLOCK, MAX_GROUPS, Quant, Unpacked};

use super::layout::Layout;
use super::record::RecordRow;
use crate::shared::{CHUNK, TILE};

/// A tensor and how it is packed: `[tile][chunk]` records.
pub(crate) struct Packing<'a> {
    pub(crate) layout: Layout,
    /// On all scales and offsets: they are halves, so the largest is brought near one.
    pub(crate) factor: f32,
    tensor: &'a HostTensor,
    chunks: usize,
    /// Rows of each matrix of the tensor, which begins with a whole tile.
    rows: usize,
}

impl Packing<'_> {
    /// The packing of a tensor of `matrices` matrices, one below the other; `None` if
    /// its format has no layout.
    pub(crate) fn new(tensor: &HostTensor, matrices: usize) -> Option<Packing<'_>> {
        let layout = Layout::of(tensor.quant())?;
        // scales that are halves in the file are kept as they are
        let kept = *tensor.quant() == F16 || (has_half_scales(tensor.quant()) && !layout.offsets);
        let largest = if kept { 1.0 } else { max_of_rows(tensor, |row| row.largest(&layout)) };
        let factor = if largest > 0.0 { 2f32.powi(largest.log2().ceil() as i32) } else { 1.0 };
        let (chunks, rows) = (Layout::chunks(tensor.cols()), tensor.rows() / matrices.max(1));
        Some(Packing { layout, factor, tensor, chunks, rows })
    }

    /// Bytes of a tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.chunks * self.layout.bytes()
    }

    /// Bytes of all tiles.
    pub(crate) fn bytes(&self) -> usize {
        self.tensor.rows().checked_div(self.rows).unwrap_or(0) * self.rows.div_ceil(TILE) * self.tile_bytes()
    }

    /// Fills `records` with the tiles from `first` on; all processors share the work.
    pub(crate) fn fill(&self, first: usize, records: &mut [u8]) {
        let share = (records.len() / self.tile_bytes()).div_ceil(threads()).max(1);
        std::thread::scope(|scope| {
            for (i, part) in records.chunks_mut(share * self.tile_bytes()).enumerate() {
                scope.spawn(move || {
                    part.fill(0);
                    let mut row = Row::new(self.tensor);
                    let (tiles, first) = (self.rows.div_ceil(TILE), first + i * share);
                    for r in 0..part.len() / self.tile_bytes() * TILE {
                        let tile = first + r / TILE;
                        let in_matrix = tile % tiles * TILE + r % TILE;
                        if in_matrix < self.rows {
                            self.put(part, r, row.read(self.tensor, tile / tiles * self.rows + in_matrix));
                        }
                    }
                });
            }
        });
    }

    /// Writes row `r` of some tiles.
    fn put(&self, records: &mut [u8], r: usize, row: &Row) {
        let layout = &self.layout;
        let (place, groups) = (RecordRow::of(r), layout.groups());
        let first = r / TILE * self.chunks;
        let all = records.chunks_exact_mut(layout.bytes()).skip(first).take(self.chunks).enumerate();
        for (chunk, record) in all {
            if layout.is_halves() {
                let halves = &row.floats[chunk * CHUNK..];
                place.put_halves(record, &halves[..halves.len().min(CHUNK)], 1.0 / self.factor);
                continue;
            }
            let codes = &row.codes[chunk * CHUNK..];
            let mut stored = [0; CHUNK];
            layout.stored(&codes[..codes.len().min(CHUNK)], &mut stored);
            layout.put(record, place, &stored);
            for n in 0..groups {
                let from = (chunk * CHUNK + n * layout.group) / row.group;
                let Some(&scale) = row.scales.get(from) else { continue };
                let scale = if layout.negated { -scale } else { scale };
                let offset = (place.g * groups + n) * 4 + 2 * place.second;
                let mut put_half = |at: usize, x: f32| {
                    record[at + offset..][..2].copy_from_slice(&f16::from_f32(x / self.factor).to_le_bytes());
                };
                put_half(layout.scales_at(), scale);
                if layout.offsets {
                    put_half(layout.offsets_at(), row.offsets[from] + scale * layout.centre as f32);
                }
            }
        }
    }
}

/// Whether a block has one scale, a half.
fn has_half_scales(quant: &Quant) -> bool {
    let Some(codes) = quant.codes() else { return false };
    codes.group == quant.block_len && quant.fields.iter().any(|field| field.ty == FieldType::F16)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The largest `measure` of all rows.
fn max_of_rows(tensor: &HostTensor, measure: impl Fn(&Row) -> f32 + Sync) -> f32 {
    let share = tensor.rows().div_ceil(threads()).max(1);
    std::thread::scope(|scope| {
        let parts = (0..tensor.rows()).step_by(share).map(|first| {
            let measure = &measure;
            scope.spawn(move || {
                let mut row = Row::new(tensor);
                let rows = first..(first + share).min(tensor.rows());
                rows.fold(0f32, |most, r| most.max(measure(row.read(tensor, r))))
            })
        });
        let parts: Vec<_> = parts.collect();
        let joined = parts.into_iter().map(|part| part.join().unwrap_or_else(|e| resume_unwind(e)));
        joined.fold(0.0, f32::max)
    })
}

/// One row, unpacked: codes with their scales and offsets, or floats.
struct Row {
    codes: Vec<i8>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
    /// Weights per scale, in the format.
    group: usize,
    floats: Vec<f32>,
}

impl Row {
    fn new(tensor: &HostTensor) -> Row {
        let cols = tensor.cols();
        let codes = tensor.quant().codes();
        let (group, coded) = codes.map_or((1, 0), |codes| (codes.group, cols));
        let (scales, offsets) = (vec![0.0; coded / group], vec![0.0; coded / group]);
        Row { codes: vec![0; coded], scales, offsets, group, floats: vec![0.0; cols - coded] }
    }

    fn read(&mut self, tensor: &HostTensor, r: usize) -> &Row {
        let (len, bytes) = (tensor.quant().block_len, tensor.quant().block_bytes());
        let blocks = tensor.row(r).chunks_exact(bytes);
        match &tensor.quant().codec {
            Codec::Codes(Codes { group, unpack, .. }) => {
                debug_assert!(len <= MAX_BLOCK && len / group <= MAX_GROUPS);
                let groups = len / group;
                let outs = self.codes.chunks_exact_mut(len).zip(self.scales.chunks_exact_mut(groups));
                let outs = outs.zip(self.offsets.chunks_exact_mut(groups));
                for (block, ((codes, scales), offsets)) in blocks.zip(outs) {
                    unpack(block, tensor.tail(), Unpacked { codes, scales, offsets });
                }
            }
            Codec::Float(read) => self.floats.iter_mut().zip(blocks).for_each(|(to, b)| *to = read(b)),
            Codec::Named => {} // it has no layout
        }
        self
    }

    /// The largest scale, offset or float as they are stored.
    fn largest(&self, layout: &Layout) -> f32 {
        let pairs = self.scales.iter().zip(&self.offsets);
        let most = |(s, o): (&f32, &f32)| s.abs().max((o + s * layout.centre as f32).abs());
        let all = pairs.map(most).chain(self.floats.iter().map(|x| x.abs()));
        all.filter(|x| x.is_finite()).fold(0.0, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::Random;
    use tern_graph::cases::{UNLISTED, formats, random_tensor};
    use tern_quant::Q8_0;

    use super::*;

    /// Byte and shift of column `k`'s code in each plane, as in `kernels/weights/record.cuh`.
    fn places(l: &Layout, row: RecordRow, k: usize) -> [(usize, usize); 2] {
        let place = |bits: usize, plane: usize| {
            let (j, q, i, per) = (k / 16, k / 4 % 4, k % 4, 8 / bits);
            let word = if bits == 2 { j / per * 2 + row.second } else { row.second * bits + j / per };
            let lane = row.g * 4 + q;
            let at = if bits == 1 { lane * 8 + word * 4 } else { word / 4 * 512 + lane * 16 + word % 4 * 4 };
            (plane + at + i, 8 - bits * (j % per + 1))
        };
        match (l.is_signs(), l.low) {
            (true, _) => [(((row.g * 4 + k / 32) * 2 + row.second) * 4 + k % 32 / 8, 7 - k % 8), (0, 0)],
            (_, 0) => [place(l.bits, 0), (0, 0)],
            _ => [place(l.bits, 0), place(l.low, 256 * l.bits)],
        }
    }

    /// Weight `k` of row `r`, as the embed kernel computes it.
    fn weight(p: &Packing<'_>, records: &[u8], r: usize, k: usize) -> f32 {
        let l = p.layout;
        let record = &records[(r / 16 * p.chunks + k / 128) * l.bytes()..][..l.bytes()];
        let (row, k) = (RecordRow::of(r), k % 128);
        if l.is_halves() {
            let at =
                (k / 16 * 32 + row.g * 4 + k / 4 % 4) * 16 + row.second * 8 + (k % 2 * 2 + k / 2 % 2) * 2;
            return f16::from_le_bytes([record[at], record[at + 1]]).to_f32() * p.factor;
        }
        let get =
            |(at, shift): (usize, usize), bits: usize| i32::from(record[at] >> shift) & ((1 << bits) - 1);
        let [first, second] = places(&l, row, k);
        let code = get(first, l.bits) << l.low | if l.low > 0 { get(second, l.low) } else { 0 };
        let all = l.bits + l.low;
        let code = match l.is_signs() {
            true => 1 - 2 * code,
            _ if l.is_raised() => code - 2,
            _ if code >> (all - 1) == 1 => code - (1 << all),
            _ => code,
        };
        let at = (row.g * l.groups() + k / l.group) * 4 + 2 * row.second;
        let half =
            |from: usize| f16::from_le_bytes([record[from + at], record[from + at + 1]]).to_f32() * p.factor;
        half(l.scales_at()) * code as f32 + if l.offsets { half(l.offsets_at()) } else { 0.0 }
    }

    #[test]
    fn every_format_keeps_its_weights() {
        let rng = &mut Random::new(3);
        for quant in formats().filter(|q| Layout::of(q).is_some()) {
            let (rows, cols) = (21, 288usize.next_multiple_of(quant.block_len));
            let tensor = random_tensor("w", quant, rows, cols, rng).unwrap();
            let packing = Packing::new(&tensor, 1).unwrap_or_else(|| panic!("{quant} has no layout"));
            let mut records = vec![0xff; packing.bytes()];
            let (first, rest) = records.split_at_mut(packing.tile_bytes()); // piece by piece
            packing.fill(0, first);
            packing.fill(1, rest);
            let want = tensor.to_f32();
            let most = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (i, want) in want.iter().enumerate() {
                let got = weight(&packing, &records, i / cols, i % cols);
                let exact = *quant == UNLISTED || packing.layout.is_halves();
                let off = if exact { 0.0 } else { 2e-3 * most }; // its scales and offsets are halves
                assert!((got - want).abs() <= off, "{quant} at {i}: {got}, want {want}");
            }
        }
    }

    #[test]
    fn every_matrix_of_a_tensor_begins_with_a_whole_tile() {
        let tensor = random_tensor("w", &Q8_0, 3 * 21, 128, &mut Random::new(5)).unwrap();
        let packing = Packing::new(&tensor, 3).unwrap();
        let mut records = vec![0xff; packing.bytes()];
        assert_eq!(records.len(), 3 * 2 * packing.tile_bytes());
        packing.fill(0, &mut records);
        let want = tensor.to_f32();
        for (i, want) in want.iter().enumerate() {
            let (matrix, row) = (i / 128 / 21, i / 128 % 21);
            assert_eq!(weight(&packing, &records, matrix * 32 + row, i % 128), *want);
        }
    }

    #[test]
    fn codes_of_any_bytes_have_room() {
        let rng = &mut Random::new(4);
        for quant in formats() {
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
                let sign = if layout.negated { -1 } else { 1 };
                let fits = |c: &i8| match layout.is_signs() {
                    true => c.abs() == 1,
                    false => (-half..half).contains(&(sign * i32::from(*c) - layout.centre)),
                };
                assert!(codes.iter().all(fits), "{quant}");
            }
        }
    }
}
