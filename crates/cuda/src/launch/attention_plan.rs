//! Which thread block of attention takes which tokens and keys, in steps of many tokens.
//!
//! A tile has the query heads of one key head for a few tokens of a slice. Its keys are split over several
//! blocks if it would take much longer than the others. Decode tiles (few rows) and prefill tiles have
//! separate kernels and lists.

use std::cmp::Reverse;
use std::iter;
use std::ops::Range;

use tern_graph::Slice;

use crate::shared::{
    ALL_KEYS, ATTEND_SEGMENT, AttendWork, HEAD_CELLS, ImageOrder, MOST_VALUE_COLS, WORK_HEADER,
};

/// Query rows of a decode tile.
pub(super) const DECODE_ROWS: usize = 16;
/// Query rows of a prefill tile at most.
pub(super) const MOST_PREFILL_ROWS: usize = 128;
/// Splits begin at multiples of it: whole tiles of keys of either kernel.
const KEY_ALIGN: usize = 64;
/// Keys of a split at least: fewer are not worth a second block.
const SPLIT_KEYS: usize = 256;
/// Blocks that a step has at least if its keys are split evenly: two rounds of two blocks per processor.
const BLOCKS_PER_PROCESSOR: usize = 4;
/// Results of segments that are kept per processor, if they are reproducible: tiles that
/// have more are not split.
const SEGMENTS_PER_PROCESSOR: [usize; 2] = [64, 16];

/// Tiles of the kernels for one shape of attention, and their shared memory;
/// `kernels/launches/paged_attention.cu` has them as definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionTiles {
    /// Columns of a value head in pages that a block sums.
    pub(super) v_part: usize,
    /// Warps of a prefill block.
    pub(super) prefill_warps: usize,
    /// Query rows of a prefill tile.
    pub(super) prefill_rows: usize,
    /// Keys that it reads at once.
    pub(super) prefill_keys: usize,
    pub(super) prefill_shared: usize,
    /// Warps of a decode block, each with different keys.
    pub(super) decode_warps: usize,
    /// Tiles of keys that a warp has in shared memory.
    pub(super) decode_stages: usize,
    pub(super) decode_shared: usize,
}

impl AttentionTiles {
    /// `most_shared`: bytes of shared memory that a block should have at most, 99 KiB or more: what a block
    /// may have, or half of what a processor has (less 1 KiB per block), if that is less. Then two blocks fit
    /// on a Hopper processor. `reproducible`: the sums of all segments have their own shared memory.
    pub(super) fn of(
        head_dim: usize,
        v_dim: usize,
        cell_bytes: usize,
        most_shared: usize,
        reproducible: bool,
    ) -> AttentionTiles {
        let [head_dim, v_dim] = [head_dim, v_dim].map(in_cells);
        let wide = head_dim.max(v_dim) > MOST_VALUE_COLS;
        let v_dim = v_dim / value_parts(v_dim); // of a block
        let most_rows = if head_dim > 192 || v_dim > 128 || reproducible { 64 } else { MOST_PREFILL_ROWS };
        // fewer keys where scores of 64 do not fit into registers beside the sums, or
        // 32 keys into shared memory
        let prefill_keys = match head_dim.max(v_dim) {
            _ if wide => 16,
            dim if dim > 64 * cell_bytes => 32,
            _ => 64,
        };
        let scales = if cell_bytes == 1 { 8 } else { 0 };
        let stage =
            |keys: usize| keys * (row_bytes(head_dim * cell_bytes) + row_bytes(v_dim * cell_bytes) + scales);
        // q and the stages, later the sums in their place; then largest scores, weights and factors of rows,
        // and a word; if results are reproducible, the sums of all segments beside q and the stages
        let shared = |rows: usize, groups: usize, stages: usize| {
            let pipeline = rows * row_bytes(head_dim * 2) + groups * stages;
            let (sum, rest) = (rows * (v_dim + 8) * 4, rows * 4 + 16);
            if reproducible {
                return pipeline + sum + rows * 8 + rest;
            }
            pipeline.max(groups * sum) + groups * rows * 8 + rest
        };
        let prefill_shared = |rows: usize, keys: usize| shared(rows, 1, 2 * stage(keys));
        let fewer_keys = [prefill_keys, 32, 16].into_iter().filter(|keys| *keys <= prefill_keys);
        let sizes =
            [most_rows, most_rows / 2].into_iter().flat_map(|r| fewer_keys.clone().map(move |k| (r, k)));
        let fit = sizes.into_iter().find(|&(rows, keys)| prefill_shared(rows, keys) <= most_shared);
        let (prefill_rows, prefill_keys) = fit.unwrap_or((most_rows / 2, 16));
        let decode_shared = |warps: usize, stages: usize| shared(DECODE_ROWS, warps, stages * stage(16));
        let most_warps = if head_dim + v_dim > 320 { 2 } else { 4 };
        let enough_memory = |warps: &usize| decode_shared(*warps, 2) <= most_shared;
        let decode_warps = [most_warps, 2].into_iter().find(enough_memory).unwrap_or(1);
        let fits = |stages: &usize| decode_shared(decode_warps, *stages) <= most_shared;
        let decode_stages = [4, 3].into_iter().find(fits).unwrap_or(2);
        AttentionTiles {
            v_part: v_dim,
            prefill_warps: if prefill_rows < 64 { 2 } else { 4 },
            prefill_rows,
            prefill_keys,
            prefill_shared: prefill_shared(prefill_rows, prefill_keys),
            decode_warps,
            decode_stages,
            decode_shared: decode_shared(decode_warps, decode_stages),
        }
    }
}

/// Columns of a head in pages: the last of them are zeros.
pub(crate) fn in_cells(columns: usize) -> usize {
    columns.next_multiple_of(HEAD_CELLS)
}

/// Blocks that share a value head.
pub(super) fn value_parts(v_dim: usize) -> usize {
    v_dim.div_ceil(MOST_VALUE_COLS)
}

/// Bytes of a row in shared memory: `Rows::STRIDE` of `kernels/attention/paged_attention.cuh`.
fn row_bytes(bytes: usize) -> usize {
    let pieces = bytes / 16;
    if pieces.is_multiple_of(8) { bytes } else { (pieces | 1) * 16 }
}

/// What a plan depends on besides the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PagedShape {
    pub(super) kv_heads: usize,
    /// Query heads of a key head.
    pub(super) group: usize,
    /// Keys up to a token's own that it sees, or 0 for all.
    pub(super) window: usize,
    /// Keys after a token that it sees.
    pub(super) after: usize,
    /// What tokens of an image see of it.
    pub(super) images: ImageOrder,
    /// Query rows of a prefill tile.
    pub(super) prefill_rows: usize,
    /// Whether keys are split at segments, whose results are combined.
    pub(super) reproducible: bool,
    /// Blocks that share a value head.
    pub(super) value_parts: usize,
    pub(super) processors: usize,
}

impl PagedShape {
    /// Blocks of a work item, one per key head, group of its query heads and part of its value head: the
    /// grid's second dimension.
    pub(super) fn blocks_per_item(&self, kind: TileKind) -> usize {
        self.kv_heads * self.group.div_ceil(self.rows(kind)) * self.value_parts
    }

    /// Query rows of a tile.
    pub(super) fn rows(&self, kind: TileKind) -> usize {
        match kind {
            TileKind::Decode => DECODE_ROWS,
            TileKind::Prefill => self.prefill_rows,
        }
    }

    fn tile_tokens(&self, kind: TileKind) -> usize {
        (self.rows(kind) / self.group).max(1)
    }

    fn kind_of(&self, len: usize) -> TileKind {
        let few = len * self.group <= DECODE_ROWS || len == 1;
        if few { TileKind::Decode } else { TileKind::Prefill }
    }
}

/// Results of split tiles that a list has at most; each needs `rows * (v_dim + 2)` floats. There are fewer
/// counters of arrivals.
pub(super) fn most_partials(processors: usize, kind: TileKind, reproducible: bool) -> usize {
    processors * if reproducible { SEGMENTS_PER_PROCESSOR[kind as usize] } else { BLOCKS_PER_PROCESSOR }
}

/// Items of a list at most, for steps of up to `tokens`: tiles have a token or more,
/// and splits are items too.
pub(super) fn most_items(tokens: usize, processors: usize) -> usize {
    tokens + BLOCKS_PER_PROCESSOR * processors
}

/// The kernel of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TileKind {
    Decode,
    Prefill,
}

/// Consecutive tokens of a slice: of an image in which tokens see each other, or of none.
struct Run {
    first_token: usize,
    position: usize,
    len: usize,
    /// Position after the last token of the slice.
    end: usize,
    /// Positions of the image.
    image: Option<Range<usize>>,
}

/// Tokens of a slice, and the keys that one of them sees.
#[derive(Clone, Copy)]
struct Tile {
    first_token: usize,
    tokens: usize,
    begin: usize,
    end: usize,
    /// The first key that all of them see, if images are alone.
    first_key: usize,
    /// Keys after a token that it sees, up to `end`.
    after: usize,
}

impl Tile {
    fn keys(&self) -> usize {
        self.end - self.begin
    }
}

/// The work of one launch, longest first.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkList {
    pub(super) items: Vec<AttendWork>,
    /// Results of splits that it uses.
    pub(super) partials: usize,
    /// Counters of arrivals that it uses.
    pub(super) arrivals: usize,
}

impl WorkList {
    /// Plans tiles of this kind.
    fn plan(&mut self, slices: &[Slice], shape: &PagedShape, kind: TileKind) {
        let blocks = shape.blocks_per_item(kind);
        let total: usize = tiles(slices, shape, kind).map(|tile| tile.keys()).sum();
        let limit = (total * blocks).div_ceil(BLOCKS_PER_PROCESSOR * shape.processors).max(SPLIT_KEYS);
        let most_partials = most_partials(shape.processors, kind, shape.reproducible);
        self.items.clear();
        (self.partials, self.arrivals) = (0, 0);
        for tile in tiles(slices, shape, kind) {
            // rounded down: all blocks together fill whole rounds of the processors, and
            // none is longer than a round
            let splits = (tile.keys() / limit).max(1);
            let align = if shape.reproducible { ATTEND_SEGMENT } else { KEY_ALIGN };
            let (begin, first_segment) = (tile.begin / align * align, tile.begin / ATTEND_SEGMENT);
            let units = (tile.end - begin).div_ceil(align);
            let results = |splits: usize| if shape.reproducible { units } else { splits };
            let fits = self.partials + results(splits) * blocks <= most_partials;
            let splits = if fits { splits } else { 1 };
            let bound = |split: usize| begin + units * split / splits * align;
            self.items.extend((0..splits).map(|split| AttendWork {
                first_token: tile.first_token as u32,
                tokens: tile.tokens as u32,
                key_begin: bound(split).max(tile.begin) as u32,
                key_end: bound(split + 1).min(tile.end) as u32,
                split: split as u32,
                splits: splits as u32,
                results: results(splits) as u32,
                first_segment: first_segment as u32,
                partial: self.partials as u32,
                arrival: self.arrivals as u32,
                first_key: tile.first_key as u32,
                after: tile.after as u32,
            }));
            if splits > 1 {
                self.partials += results(splits) * blocks;
                self.arrivals += blocks;
            }
        }
        self.items.sort_unstable_by_key(|w| (Reverse(w.key_end - w.key_begin), w.first_token, w.split));
    }

    /// The list as the kernel reads it.
    pub(super) fn write(&self, words: &mut Vec<u32>) {
        words.extend([self.items.len() as u32, 0, 0, 0, 0, 0, 0, 0]);
        words.extend_from_slice(bytemuck::cast_slice(&self.items));
    }

    /// Words of a list of `items` items.
    pub(super) fn words(items: usize) -> usize {
        WORK_HEADER + items * (size_of::<AttendWork>() / 4)
    }
}

/// The slices of a step, divided where images begin and end if their tokens see each other.
fn runs(slices: &[Slice], divided: bool) -> impl Iterator<Item = Run> {
    let mut tokens = 0;
    slices.iter().flat_map(move |slice| {
        let Range { start, end } = slice.positions();
        let first_token = tokens;
        tokens += slice.len;
        let mut next = start;
        iter::from_fn(move || {
            let position = next;
            let image = slice.images.at(position).filter(|_| divided);
            let borders = slice.images.iter().filter(|_| divided).map(|image| image.start);
            next = match image {
                Some(image) => image.end().min(end),
                None => borders.filter(|border| *border > position).chain([end]).min()?.min(end),
            };
            (position < end).then(|| Run {
                first_token: first_token + position - start,
                position,
                len: next - position,
                end,
                image: image.map(|image| image.start..image.end()),
            })
        })
    })
}

/// The tiles of this kind.
fn tiles(slices: &[Slice], shape: &PagedShape, kind: TileKind) -> impl Iterator<Item = Tile> {
    let (each, divided) = (shape.tile_tokens(kind), shape.images != ImageOrder::Sequence);
    let runs = runs(slices, divided).filter(move |run| shape.kind_of(run.len) == kind);
    runs.flat_map(move |run| {
        (0..run.len).step_by(each).map(move |at| {
            let (first_token, position) = (run.first_token + at, run.position + at);
            let tokens = each.min(run.len - at);
            let seen = if shape.window > 0 { (position + 1).saturating_sub(shape.window) } else { 0 };
            let tile = |seen: usize, end: usize, after: usize| {
                let begin = seen / KEY_ALIGN * KEY_ALIGN;
                Tile { first_token, tokens, begin, end: end.min(run.end), first_key: 0, after }
            };
            match &run.image {
                None => tile(seen, position + tokens + shape.after, shape.after),
                Some(image) if shape.images == ImageOrder::Alone => {
                    Tile { first_key: image.start, ..tile(image.start, image.end, ALL_KEYS) }
                }
                Some(image) => tile(seen, image.end, ALL_KEYS),
            }
        })
    })
}

/// The work of a step's attention; it is planned again for each step, in the same memory.
#[derive(Clone, Debug, Default)]
pub(super) struct AttentionPlan {
    pub(super) decode: WorkList,
    pub(super) prefill: WorkList,
}

impl AttentionPlan {
    /// Plans a step of slices.
    pub(super) fn plan(&mut self, slices: &[Slice], shape: &PagedShape) {
        self.decode.plan(slices, shape, TileKind::Decode);
        self.prefill.plan(slices, shape, TileKind::Prefill);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tern_graph::{ImageRows, Images};

    use super::*;

    fn shape(group: usize, window: usize) -> PagedShape {
        PagedShape {
            kv_heads: 8,
            group,
            window,
            after: 0,
            images: ImageOrder::Sequence,
            prefill_rows: 128,
            reproducible: false,
            value_parts: 1,
            processors: 132,
        }
    }

    fn planned(slices: &[(usize, usize)], shape: &PagedShape) -> AttentionPlan {
        let slices = slices.iter().map(|(position, len)| Slice::new(*len, *position, vec![]));
        let mut plan = AttentionPlan::default();
        plan.plan(&slices.collect::<Vec<_>>(), shape);
        plan
    }

    /// How often each key of each token is covered by items, with causality and window.
    fn check_coverage(slices: &[(usize, usize)], shape: &PagedShape) {
        let plan = planned(slices, shape);
        let mut first = 0;
        for &(position, len) in slices {
            let items: Vec<_> =
                [&plan.decode, &plan.prefill].into_iter().flat_map(|list| &list.items).collect();
            for i in 0..len {
                let (token, at) = ((first + i) as u32, position + i);
                let from = if shape.window > 0 { (at + 1).saturating_sub(shape.window) } else { 0 };
                let to = (at + 1 + shape.after).min(position + len);
                let mut seen = vec![0; to];
                let of = items.iter().filter(|w| w.first_token <= token && token < w.first_token + w.tokens);
                for w in of {
                    assert!(w.key_begin.is_multiple_of(64), "a split begins at {}", w.key_begin);
                    assert!(
                        w.first_token >= first as u32 && (w.first_token + w.tokens) as usize <= first + len
                    );
                    for key in w.key_begin.max(from as u32)..w.key_end.min(to as u32) {
                        seen[key as usize] += 1;
                    }
                }
                assert!(seen[from..].iter().all(|n| *n == 1), "token {token}: {slices:?}");
            }
            first += len;
        }
    }

    #[test]
    fn every_visible_key_of_a_token_is_covered_once() {
        for group in [1, 3, 4, 8, 16, 24, 64] {
            for window in [0, 1, 100, 1000] {
                let shape = shape(group, window);
                check_coverage(&[(0, 1), (14, 1), (1000, 1), (9999, 1)], &shape);
                check_coverage(&[(0, 300), (1000, 5), (77, 1), (500, 33), (63, 2)], &shape);
                check_coverage(&[(20_000, 1)], &shape);
            }
        }
    }

    #[test]
    fn keys_after_a_token_are_covered_up_to_the_end_of_its_sequence() {
        for (window, after) in [(0, ALL_KEYS), (1, 0), (65, 64), (301, 300)] {
            for group in [1, 4] {
                let shape = PagedShape { after, ..shape(group, window) };
                check_coverage(&[(0, 300), (0, 5), (0, 1), (0, 8192), (0, 63)], &shape);
            }
        }
    }

    #[test]
    fn tokens_of_an_image_are_tiles_of_their_own() {
        let image = |len| Arc::new(ImageRows { len, ..ImageRows::default() });
        let images = Images::new([(3, image(40)), (50, image(7))]);
        let slices = [Slice { images, ..Slice::new(60, 0, vec![]) }];
        let rule = |images: ImageOrder, window: usize| {
            let mut plan = AttentionPlan::default();
            plan.plan(&slices, &PagedShape { images, window, ..shape(4, 0) });
            let items = plan.decode.items.iter().chain(&plan.prefill.items);
            let mut items: Vec<_> = items
                .map(|w| (w.first_token, w.tokens, w.key_begin, w.key_end, w.first_key, w.after))
                .collect();
            items.sort_unstable();
            items
        };
        let all = ALL_KEYS as u32;
        assert_eq!(rule(ImageOrder::Sequence, 0), [(0, 32, 0, 32, 0, 0), (32, 28, 0, 60, 0, 0)]);
        let text = [(0, 3, 0, 3, 0, 0), (43, 7, 0, 50, 0, 0), (57, 3, 0, 60, 0, 0)];
        let whole = [(3, 32, 0, 43, 0, all), (35, 8, 0, 43, 0, all), (50, 7, 0, 57, 0, all)];
        assert_eq!(rule(ImageOrder::Whole, 0), [text[0], whole[0], whole[1], text[1], whole[2], text[2]]);
        let alone = [(3, 32, 0, 43, 3, all), (35, 8, 0, 43, 3, all), (50, 7, 0, 57, 50, all)];
        assert_eq!(rule(ImageOrder::Alone, 0), [text[0], alone[0], alone[1], text[1], alone[2], text[2]]);
    }

    #[test]
    fn splits_are_even_and_within_the_bounds() {
        let mixed: Vec<_> = (0..128).map(|i| (200 + i * 30, 1)).collect();
        let one_long: Vec<_> = (0..127).map(|_| (200, 1)).chain([(100_000, 1)]).collect();
        let cases =
            [mixed, one_long, vec![(100_000, 1)], vec![(32_768, 2048)], vec![(0, 2048)], vec![(32_768, 100)]];
        for slices in &cases {
            let shape = shape(4, 0);
            let plan = planned(slices, &shape);
            let tokens: usize = slices.iter().map(|s| s.1).sum();
            for list in [&plan.decode, &plan.prefill] {
                let keys = |w: &AttendWork| (w.key_end - w.key_begin) as usize;
                let total: usize = list.items.iter().map(keys).sum();
                let limit = (total * 8).div_ceil(4 * 132).max(256);
                assert!(list.items.iter().all(|w| keys(w) < 2 * limit + 64), "{slices:?}");
                assert!(list.items.iter().all(|w| w.splits == 1 || keys(w) + 63 >= 256), "{slices:?}");
                assert!(list.items.is_sorted_by_key(|w| Reverse(keys(w))));
                assert!(list.items.len() <= most_items(tokens, shape.processors));
                assert!(
                    list.partials <= most_partials(shape.processors, TileKind::Decode, false)
                        && list.arrivals <= list.partials
                );
            }
        }
        assert_eq!(planned(&cases[2], &shape(4, 0)).decode.items.len(), 65); // 520 blocks
        assert_eq!(planned(&cases[3], &shape(4, 0)).prefill.items.len(), 64); // enough tiles: no splits
    }

    #[test]
    fn partial_results_of_tiles_do_not_overlap() {
        let plan = planned(&[(50_000, 1), (30_000, 1), (100, 1)], &shape(4, 0));
        let mut ranges: Vec<_> = plan.decode.items.iter().filter(|w| w.splits > 1 && w.split == 0).collect();
        ranges.sort_by_key(|w| w.partial);
        assert_eq!(ranges.len(), 2);
        assert_eq!((ranges[0].partial, ranges[0].arrival), (0, 0));
        assert_eq!((ranges[1].partial, ranges[1].arrival), (ranges[0].splits * 8, 8));
        assert_eq!(plan.decode.partials as u32, (ranges[0].splits + ranges[1].splits) * 8);
        assert_eq!(plan.decode.arrivals, 16);
    }

    #[test]
    fn few_rows_are_decode_tiles() {
        let counts = |slices: &[(usize, usize)], group| {
            let plan = planned(slices, &shape(group, 0));
            (plan.decode.items.len(), plan.prefill.items.len())
        };
        assert_eq!(counts(&[(0, 4), (0, 5), (0, 33)], 4), (1, 3)); // 16, 20 and 132 rows
        assert_eq!(counts(&[(9, 1), (9, 2)], 24), (1, 1)); // one token is always a decode tile
        let mut words = vec![];
        planned(&[(0, 4)], &shape(4, 0)).decode.write(&mut words);
        assert_eq!(words, [1, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 4, 0, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(words.len(), WorkList::words(1));
    }

    #[test]
    fn two_blocks_fit_on_a_processor() {
        let dims = || (16..=256).step_by(16);
        let wide = [(512, 512), (576, 512)];
        // bytes of a cell, and whether sums are reproducible
        let kinds = [(1, false), (2, false), (1, true), (2, true)];
        for (head_dim, v_dim) in dims().flat_map(|k| dims().map(move |v| (k, v))).chain(wide) {
            for ((cell_bytes, reproducible), most) in kinds.into_iter().flat_map(|k| [(k, 99), (k, 113)]) {
                let tiles = AttentionTiles::of(head_dim, v_dim, cell_bytes, most * 1024, reproducible);
                let shared = tiles.prefill_shared.max(tiles.decode_shared);
                // reproducible wide heads have one block per processor, if there is memory for it
                let most = if reproducible && head_dim > 256 { 227 } else { most };
                assert!(shared <= most * 1024, "{head_dim}, {v_dim}, {reproducible}: {tiles:?}");
            }
        }
        let tiles = AttentionTiles::of(128, 128, 2, 113 * 1024, false);
        assert_eq!((tiles.prefill_shared, tiles.decode_shared, tiles.decode_stages), (99_856, 102_992, 3));
    }
}
