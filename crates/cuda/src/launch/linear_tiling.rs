//! How a linear phase of many tokens is divided into tiles, blocks and stages
//! (`kernels/linear/tiled_linear.cuh`).

use crate::arithmetic::{Activations, Arithmetic};
use crate::driver::{Device, DeviceFacts};
use crate::shared::{
    CHUNK, MOST_SPLITS, NORMS_TOKENS, ONE_TILE, RAW_RECORD, RAW_TOKENS, STAGED_TOKENS, WGMMA_TOKENS,
};

/// Tokens of a tile: kernels are compiled for each of them.
pub(crate) const TILE_TOKENS: [usize; 9] = [8, 16, 24, 32, 48, 64, 96, 128, 256];

/// Tokens of a tile with x as bytes.
pub(crate) const BYTE_TILE: usize = 128;

/// Rows of a tile of experts.
pub(crate) const EXPERT_TILES: [usize; 5] = [8, 16, 32, 48, 128];

/// Rows of a tile, in records: 16 rows for each of eight warps.
pub(super) const TILE_RECORDS: usize = 8;
/// Rows of tall tiles, which only gated linears have.
const TALL_RECORDS: [usize; 3] = [12, 16, 20];
/// Stages of a ring at most: more are not filled in time.
const MOST_STAGES: usize = 8;
/// The fewest tokens of a tile in steps of several tiles.
const LARGE_TILE: usize = 96;
/// The most tokens of a tile that take so little time that the start of the next launch counts.
const OVERLAPPING_TOKENS: usize = 32;
/// The time in which the blocks of a cluster add the sums of a large tile, in chunks.
const EXCHANGE: usize = 4;
/// Bytes of shared memory that the driver keeps per block.
const RESERVED: usize = 1024;

/// The smallest tile that holds all rows; `None` if a step of that many rows has several.
pub(crate) fn whole_tile(rows: usize) -> Option<usize> {
    TILE_TOKENS.into_iter().find(|&n| n >= rows && rows <= ONE_TILE)
}

/// The tokens that the launches of steps of up to `tokens` may be recorded for.
pub(crate) fn recorded_tokens(tokens: usize) -> usize {
    whole_tile(tokens).unwrap_or(tokens)
}

/// What a linear phase multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearSize {
    /// Tiles of rows, of all parts.
    pub(crate) row_tiles: usize,
    /// Records of rows of a gate and of its partner each, if tall tiles are possible.
    pub(crate) gated_records: Option<usize>,
    /// Chunks of columns.
    pub(crate) chunks: usize,
    /// Bytes of a record.
    pub(crate) record: usize,
    /// Whether it is a matrix of each expert.
    pub(crate) experts: bool,
}

impl LinearSize {
    /// The size of parts, with the number of records of rows of each.
    pub(crate) fn of_parts(records: impl Iterator<Item = usize>, chunks: usize, record: usize) -> LinearSize {
        let row_tiles = records.map(|n| n.div_ceil(TILE_RECORDS)).sum();
        LinearSize { row_tiles, gated_records: None, chunks, record, experts: false }
    }

    /// The size of a gate and its partner, of `records` records of rows each: a tile has rows of both.
    pub(crate) fn of_gated(records: usize, chunks: usize, record: usize) -> LinearSize {
        LinearSize {
            row_tiles: records.div_ceil(TILE_RECORDS / 2),
            gated_records: Some(records),
            chunks,
            record,
            experts: false,
        }
    }

    /// Rows of tall tiles, in records, if the multiprocessor with the most rows has the fewest of them so.
    fn better_tall_records(&self, tokens: usize, limits: &Limits) -> Option<usize> {
        let records = self.gated_records.filter(|_| tokens < STAGED_TOKENS)?;
        if self.row_tiles <= limits.processors {
            return None; // blocks share the tiles
        }
        let most_rows = |tile: usize| records.div_ceil(tile / 2).div_ceil(limits.processors) * tile;
        let fits = |tile: &usize| stages(tokens, self.record, *tile, 1, limits).is_some();
        let tall = TALL_RECORDS.into_iter().filter(fits).min_by_key(|tile| most_rows(*tile))?;
        (most_rows(tall) < most_rows(TILE_RECORDS)).then_some(tall)
    }

    /// Segments of columns whose sums are added in their order, in steps of all sizes, if rows are
    /// reproducible: as many as blocks share the tiles of a small step.
    pub(crate) fn segments(&self, limits: &Limits) -> usize {
        let may_be_tall = self.gated_records.is_some() && self.row_tiles > limits.processors;
        if !limits.reproducible || !limits.clusters || may_be_tall || self.experts {
            return 1;
        }
        splits(*self, TILE_TOKENS[0], limits.processors)
    }

    /// Warps that multiply tiles of `tokens` tokens.
    pub(crate) fn row_warps(&self, tokens: usize, limits: &Limits) -> usize {
        self.better_tall_records(tokens, limits).unwrap_or(TILE_RECORDS)
    }
}

/// What a device offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) processors: usize,
    /// Bytes of shared memory of a block.
    pub(crate) shared_memory: usize,
    /// Blocks can read each other's shared memory.
    pub(crate) clusters: bool,
    /// Four warps can multiply together.
    pub(crate) warpgroups: bool,
    /// Rows have the same bits in tiles of all sizes.
    pub(crate) reproducible: bool,
    /// Large steps may have x as bytes.
    pub(crate) bytes: bool,
}

impl Limits {
    pub(crate) fn of(device: &Device) -> Limits {
        let DeviceFacts { processors, shared_memory, capability, .. } = device.facts;
        let (clusters, warpgroups) = (capability >= (9, 0), capability == (9, 0));
        let Arithmetic { reproducible, activations } = device.arithmetic;
        let bytes = warpgroups && !reproducible && activations == Activations::Int8;
        Limits { processors, shared_memory, clusters, warpgroups, reproducible, bytes }
    }

    /// Bytes of shared memory of each of `blocks` blocks on a multiprocessor.
    fn shared_by(&self, blocks: usize) -> usize {
        (self.shared_memory + RESERVED) / blocks - RESERVED
    }

    /// Blocks that a multiprocessor is to run at the same time.
    pub(crate) fn blocks_per_processor(tokens: usize, row_warps: usize) -> usize {
        if tokens < LARGE_TILE && row_warps == TILE_RECORDS { 2 } else { 1 }
    }
}

/// The launch of a linear phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearTiling {
    /// Tokens of a tile.
    pub(crate) tokens: usize,
    /// Warps that multiply, 16 rows each.
    pub(crate) row_warps: usize,
    /// Blocks that share the columns of a tile.
    pub(crate) splits: usize,
    /// Segments of the columns of a block, whose sums are added to each other: one,
    /// unless rows are reproducible.
    pub(crate) segments: usize,
    pub(crate) stages: usize,
    pub(crate) blocks: usize,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Bytes of shared memory of a block.
    pub(crate) shared: usize,
}

/// What the tiles of a kernel need: `Sizes` of `kernels/linear/tiled_linear.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileSizes {
    /// Bytes of a record.
    record: usize,
    /// Bytes of a value of x.
    x_bytes: usize,
    /// Warps that multiply, 16 rows each.
    row_warps: usize,
    /// Warps that copy: with warpgroups, a whole one for large tiles.
    copying_warps: usize,
    /// Raw codes are multiplied, and a warp sums x: scaling the sums of many tokens takes longer than
    /// expanding codes.
    sums_x: bool,
    /// Threads of a block.
    threads: usize,
    blocks_per_processor: usize,
    /// Chunks of a stage: copies of a few hundred bytes are slow.
    stage_chunks: usize,
    /// Places in a stage, which begins with x: of the records of each warp, ...
    records_at: usize,
    /// ... of what the sums of each chunk start at, a float per token, if a warp sums x, or of two floats per
    /// token that belong to bytes, ...
    starts_at: usize,
    /// ... and of a barrier that is complete when those have arrived.
    summed_at: usize,
    /// Bytes of a stage.
    stage: usize,
    /// Four warps can multiply together.
    warpgroups: bool,
}

impl TileSizes {
    pub(crate) fn of(tokens: usize, record: usize, row_warps: usize, limits: &Limits) -> TileSizes {
        let sums_x = !limits.reproducible && record == RAW_RECORD && tokens <= RAW_TOKENS;
        let copying_warps = if tokens >= 128 && limits.warpgroups { 4 } else { 1 };
        let stage_chunks = match (tokens, record) {
            (48.., _) | (_, 1281..) => 1,
            (17.., _) | (_, 641..) => 2,
            _ => 4,
        };
        let records_at = stage_chunks * tokens * 256;
        let starts_at = records_at + stage_chunks * row_warps * record;
        let summed_at = starts_at + stage_chunks * tokens * 4;
        TileSizes {
            record,
            x_bytes: 2,
            row_warps,
            copying_warps,
            sums_x,
            threads: (row_warps + copying_warps + usize::from(sums_x)) * 32,
            blocks_per_processor: Limits::blocks_per_processor(tokens, row_warps),
            stage_chunks,
            records_at,
            starts_at,
            summed_at,
            stage: if sums_x { summed_at + 16 } else { starts_at }.next_multiple_of(1024),
            warpgroups: limits.warpgroups,
        }
    }

    /// Those of large steps with x as bytes.
    pub(super) fn of_bytes(record: usize, limits: &Limits) -> TileSizes {
        let (tokens, copying_warps, stage_chunks) = (BYTE_TILE, 4, 2);
        let records_at = stage_chunks * tokens * CHUNK;
        let starts_at = records_at + stage_chunks * TILE_RECORDS * record;
        let summed_at = starts_at + 2 * tokens * 4;
        TileSizes {
            record,
            x_bytes: 1,
            row_warps: TILE_RECORDS,
            copying_warps,
            sums_x: false,
            threads: (TILE_RECORDS + copying_warps) * 32,
            blocks_per_processor: 1,
            stage_chunks,
            records_at,
            starts_at,
            summed_at,
            stage: summed_at.next_multiple_of(1024),
            warpgroups: limits.warpgroups,
        }
    }

    /// The constants of a kernel whose blocks have `segments` segments of the columns.
    pub(crate) fn constants(&self, segments: usize) -> [(&'static str, usize); 14] {
        [
            ("RECORD", self.record),
            ("X_BYTES", self.x_bytes),
            ("ROW_WARPS", self.row_warps),
            ("COPYING_WARPS", self.copying_warps),
            ("SUMS_X", self.sums_x.into()),
            ("THREADS", self.threads),
            ("BLOCKS_PER_PROCESSOR", self.blocks_per_processor),
            ("SEGMENTS", segments),
            ("STAGE_CHUNKS", self.stage_chunks),
            ("RECORDS_AT", self.records_at),
            ("STARTS_AT", self.starts_at),
            ("SUMMED_AT", self.summed_at),
            ("STAGE", self.stage),
            ("WARPGROUPS", self.warpgroups.into()),
        ]
    }
}

/// Bytes of shared memory after the ring: a gate; the sums of all blocks of a cluster for a share of the
/// tokens; a factor per token, and its squares per warp.
fn behind_ring(tokens: usize, splits: usize, row_warps: usize) -> usize {
    let groups = if tokens < 256 { (tokens / 8).next_multiple_of(splits) } else { 0 };
    let factors = if tokens <= NORMS_TOKENS { (1 + row_warps) * tokens * 4 } else { 0 };
    16 + groups * row_warps * 512 + factors
}

/// Stages of a ring; `None` if there is no space for two.
fn stages(tokens: usize, record: usize, row_warps: usize, splits: usize, limits: &Limits) -> Option<usize> {
    let stage = TileSizes::of(tokens, record, row_warps, limits).stage + 16; // two barriers each
    let behind = behind_ring(tokens, splits, row_warps);
    let fit = |blocks: usize| limits.shared_by(blocks).saturating_sub(behind) / stage;
    let blocks = Limits::blocks_per_processor(tokens, row_warps);
    // blocks of small tiles use half of it: those of the next launch begin meanwhile, and
    // read their first records
    let enough = if tokens < WGMMA_TOKENS { 3 } else { 2 }; // products of a warpgroup overlap with loads
    let overlapping = Some(fit(2 * blocks)).filter(|n| tokens <= OVERLAPPING_TOKENS && *n >= enough);
    let stages = overlapping.or(Some(fit(blocks)).filter(|n| *n >= 2)).unwrap_or(fit(1));
    (stages >= 2).then_some(stages.min(MOST_STAGES))
}

/// Tokens of the tiles whose stages fit into shared memory.
pub(super) fn fitting(record: usize, limits: &Limits) -> Vec<usize> {
    // the sums of larger tiles do not fit into the registers of a block without warpgroups
    let most = if limits.warpgroups { usize::MAX } else { ONE_TILE };
    let fits = |n: &usize| *n <= most && stages(*n, record, TILE_RECORDS, 1, limits).is_some();
    TILE_TOKENS.into_iter().filter(fits).collect()
}

/// Tiles that steps of several tiles have: the large ones, or the largest that fits.
fn large(fits: &[usize]) -> impl Iterator<Item = usize> {
    fits.iter().copied().filter(|&n| n >= LARGE_TILE).chain(fits.last().copied())
}

/// Tokens of all tiles that steps of up to `max_rows` rows may have.
pub(crate) fn tiles(record: usize, max_rows: usize, limits: &Limits) -> Vec<usize> {
    let fits = fitting(record, limits);
    let smaller = [0].into_iter().chain(fits.iter().copied());
    let whole = fits.iter().copied().zip(smaller).filter(|(_, smaller)| *smaller < max_rows.min(ONE_TILE));
    let several = max_rows > fits.iter().copied().filter(|n| *n <= ONE_TILE).max().unwrap_or(0);
    let mut tiles: Vec<usize> = whole.map(|(n, _)| n).filter(|n| *n <= ONE_TILE).collect();
    tiles.extend(large(&fits).filter(|_| several));
    tiles.sort_unstable();
    tiles.dedup();
    tiles
}

impl LinearTiling {
    /// The tiling for steps of up to `rows` rows of x.
    pub(crate) fn of(size: LinearSize, rows: usize, limits: &Limits) -> Option<LinearTiling> {
        let fits = fitting(size.record, limits);
        let whole = fits.iter().copied().find(|&n| n >= rows && rows <= ONE_TILE);
        let segments = size.segments(limits);
        let tokens = whole.or_else(|| {
            // two sets of sums of the largest tiles do not fit into registers
            large(&fits).filter(|&n| n < 256 || segments == 1).min_by_key(|&n| {
                let tiles = size.row_tiles * rows.div_ceil(n);
                tiles.div_ceil(limits.processors) * cost(n)
            })
        })?;
        LinearTiling::of_tiles(size, tokens, rows.div_ceil(tokens), limits)
    }

    /// The tiling of a large step with x as bytes. Stages always fit: GPUs with warpgroups have enough
    /// shared memory.
    pub(crate) fn of_bytes(size: LinearSize, rows: usize, limits: &Limits) -> LinearTiling {
        let TileSizes { stage, threads, .. } = TileSizes::of_bytes(size.record, limits);
        let stages = (limits.shared_by(1).saturating_sub(16) / (stage + 16)).clamp(2, MOST_STAGES);
        LinearTiling {
            tokens: BYTE_TILE,
            row_warps: TILE_RECORDS,
            splits: 1,
            segments: 1,
            stages,
            blocks: (size.row_tiles * rows.div_ceil(BYTE_TILE)).min(limits.processors),
            threads,
            shared: stages * (stage + 16) + 16,
        }
    }

    /// The tiling with up to `count` tiles of `tokens` each.
    pub(crate) fn of_tiles(
        size: LinearSize,
        tokens: usize,
        count: usize,
        limits: &Limits,
    ) -> Option<LinearTiling> {
        let row_warps = size.row_warps(tokens, limits); // that the kernel is compiled for
        let tall = size.gated_records.filter(|_| row_warps > TILE_RECORDS);
        let segments = size.segments(limits);
        let tiles = tall.map_or(size.row_tiles, |records| records.div_ceil(row_warps / 2)) * count;
        let size = LinearSize { row_tiles: tiles, ..size };
        let small = tall.is_none() && ((count == 1 && tokens < 256) || tokens < LARGE_TILE);
        let splits = match limits.clusters && small {
            true if limits.reproducible => segments,
            true => splits(size, tokens, limits.processors),
            false => 1,
        };
        let stages = |splits| Some((splits, stages(tokens, size.record, row_warps, splits, limits)?));
        let (splits, stages) = stages(splits).or_else(|| stages(1))?;
        let slots = limits.processors * Limits::blocks_per_processor(tokens, row_warps);
        let blocks = if splits > 1 { tiles * splits } else { tiles.min(slots) };
        let TileSizes { stage, threads, .. } = TileSizes::of(tokens, size.record, row_warps, limits);
        let shared = stages * (stage + 16) + behind_ring(tokens, splits, row_warps);
        // tall tiles are at most as many as multiprocessors: two on one of them would leave another without
        let shared = if tall.is_some() { shared.max(limits.shared_by(2) + 16) } else { shared };
        let segments = (segments / splits).max(1);
        Some(LinearTiling { tokens, row_warps, splits, segments, stages, blocks, threads, shared })
    }
}

/// The time of a tile of `tokens` tokens, measured: small tiles use the matrix unit less well.
fn cost(tokens: usize) -> usize {
    match tokens {
        256.. => 100,
        128.. => 56,
        96.. => 47,
        _ => 30 + tokens * 15 / 64,
    }
}

/// Blocks that share a tile, so that all multiprocessors have work.
fn splits(size: LinearSize, tokens: usize, processors: usize) -> usize {
    let possible = |s: &usize| size.chunks >= 2 * s;
    // two blocks of small tiles run at the same time; reading large records is bound by memory,
    // which more blocks use better
    let slots = match tokens {
        LARGE_TILE.. => processors,
        _ if size.record >= 2048 => 3 * processors,
        _ => 2 * processors,
    };
    // adding large sums takes longer
    let most = if tokens >= LARGE_TILE { MOST_SPLITS / 2 } else { MOST_SPLITS };
    let fits = |s: &usize| *s <= most && size.row_tiles * s <= slots && possible(s);
    let balanced = || {
        // the multiprocessor with the most blocks takes less time, in chunks
        let time = |s: usize| (size.row_tiles * s).div_ceil(processors) * size.chunks / s;
        (tokens >= STAGED_TOKENS && possible(&2) && time(2) + EXCHANGE < time(1)).then_some(2)
    };
    [4, 2].into_iter().find(fits).or_else(balanced).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Limits = Limits {
        processors: 132,
        shared_memory: 227 << 10,
        clusters: true,
        warpgroups: true,
        reproducible: false,
        bytes: true,
    };
    const SMALL: Limits = Limits {
        processors: 46,
        shared_memory: 99 << 10,
        clusters: false,
        warpgroups: false,
        reproducible: false,
        bytes: false,
    };
    const DOWN: LinearSize =
        LinearSize { row_tiles: 32, gated_records: None, chunks: 96, record: 288, experts: false };

    #[test]
    fn large_steps_of_bytes_fill_the_shared_memory() {
        let size = LinearSize::of_parts([256].into_iter(), 32, 288);
        let tiling = LinearTiling::of_bytes(size, 300, &H200);
        assert_eq!((tiling.stages, tiling.blocks, tiling.threads), (5, 96, 384));
        assert!(tiling.shared <= H200.shared_memory);
        assert_eq!(LinearTiling::of_bytes(size, 2048, &H200).blocks, 132);
    }

    #[test]
    fn a_step_has_the_smallest_tile_that_holds_it() {
        for rows in 1..=ONE_TILE {
            let tiling = LinearTiling::of(DOWN, rows, &H200).unwrap();
            assert!(tiling.tokens >= rows && TILE_TOKENS.iter().all(|&n| n < rows || n >= tiling.tokens));
            assert_eq!(tiling.blocks, 32 * tiling.splits);
            assert!(tiling.shared * Limits::blocks_per_processor(tiling.tokens, 8) <= 228 << 10);
        }
    }

    #[test]
    fn small_tiles_leave_shared_memory_to_the_next_launch() {
        let stages = |tokens, record| stages(tokens, record, 8, 4, &H200).unwrap();
        assert_eq!([8, 16, 32, 64].map(|tokens| stages(tokens, 288)), [5, 3, 4, 4]);
        assert_eq!([8, 32].map(|tokens| stages(tokens, 1280)), [4, 2]); // too large to leave half of it
    }

    #[test]
    fn a_warp_sums_x_for_raw_codes_of_few_tokens() {
        let of = |record, tokens| LinearTiling::of(LinearSize { record, ..DOWN }, tokens, &H200).unwrap();
        assert_eq!([8, 32, 48].map(|tokens| of(RAW_RECORD, tokens).threads), [320, 320, 288]);
        assert_eq!([32, 128].map(|tokens| of(288, tokens).threads), [288, 384]);
        let stage = |tokens| TileSizes::of(tokens, RAW_RECORD, 8, &H200).stage;
        assert_eq!(stage(32), 25 << 10); // what it writes fits into the rest of the last kilobyte
        assert_eq!(stage(16), 34 << 10); // one more
    }

    #[test]
    fn gated_tiles_are_tall_if_multiprocessors_then_have_equal_shares() {
        let gate = LinearSize::of_gated(768, 32, 288); // 192 tiles on 132 multiprocessors, or 128
        let of = |tokens| LinearTiling::of(gate, tokens, &H200).unwrap();
        assert_eq!((of(32).row_warps, of(32).blocks, of(32).splits), (12, 128, 1));
        assert_eq!((of(128).row_warps, of(128).blocks, of(128).splits), (8, 384, 2));
        assert_eq!(LinearSize::of_gated(384, 16, 288).row_warps(32, &H200), 8); // 96 tiles
        for tokens in [8, 16, 32] {
            let shared = of(tokens).shared + RESERVED;
            // no second one on the same multiprocessor
            assert!(2 * shared > 228 << 10 && shared <= 228 << 10);
        }
        let wide = LinearSize::of_gated(1088, 40, 544); // 272 tiles, or 109
        assert_eq!(LinearTiling::of(wide, 32, &H200).map(|t| (t.row_warps, t.blocks)), Some((20, 109)));
    }

    #[test]
    fn large_steps_have_the_tiles_that_take_the_least_time() {
        let tokens = |rows| LinearTiling::of(DOWN, rows, &H200).unwrap().tokens;
        // 128 tiles, or 64 on half of the multiprocessors
        assert_eq!([tokens(512), tokens(2048)], [128, 256]);
        let gate = LinearSize { row_tiles: 192, ..DOWN };
        assert_eq!(LinearTiling::of(gate, 2048, &H200).unwrap().blocks, 132);
    }

    #[test]
    fn every_tiling_is_among_the_compiled_tiles() {
        let gate = LinearSize { row_tiles: 192, ..DOWN };
        for (size, limits) in
            [(DOWN, H200), (gate, H200), (DOWN, SMALL), (LinearSize { record: 4096, ..gate }, SMALL)]
        {
            for max_rows in [1, 4, 5, 96, 128, 129, 700, 2048] {
                let tiles = tiles(size.record, max_rows, &limits);
                for rows in 1..=max_rows {
                    let tiling = LinearTiling::of(size, rows, &limits).unwrap();
                    assert!(
                        tiles.contains(&tiling.tokens),
                        "{rows} of {max_rows}: {tiling:?}, compiled: {tiles:?}"
                    );
                }
            }
        }
        assert_eq!(tiles(288, 4, &H200), [8]); // only what is needed
    }

    #[test]
    fn every_format_fits_every_device() {
        for record in [288, 576, 1280, 2304, 4096] {
            for rows in [1, 8, 100, 3000] {
                for limits in [H200, SMALL] {
                    let tiling = LinearTiling::of(LinearSize { record, ..DOWN }, rows, &limits).unwrap();
                    assert!(tiling.stages >= 2 && tiling.shared <= limits.shared_memory);
                    assert!(limits.clusters || tiling.splits == 1);
                    assert!(limits.warpgroups || tiling.tokens <= ONE_TILE);
                }
            }
        }
    }
}
