//! Linear phases of many tokens: their kernels, x as halves, and their launches.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tern_graph::BackendError;

use super::experts::{self, ExpertCounts, SortedRows};
use super::linear_tiling::{
    BYTE_TILE, Limits, LinearSize, LinearTiling, TILE_RECORDS, TileSizes, recorded_tokens, tiles, whole_tile,
};
use super::passing::{LEAST_BYTE_ROWS, NormMemory, Passing, XSource, YTarget};
use crate::driver::{self, Compiler, Device, Grid, Kernel, KernelSource, Memory, Source, sizes};
use crate::lower::{KernelConfig, NORMED_FACTOR, PASSED_FACTOR, intern, order};
use crate::shared::{
    BYTES_THREADS, ByteLinearArgs, ByteX, CHUNK, HalfX, LinearArgs, PLAIN_ORDER, PREPARE_THREADS, Phase,
    PrepareArgs, PrepareBytesArgs, TiledArgs,
};

type Result<T> = std::result::Result<T, BackendError>;

/// Rows of x as halves are a multiple of this in steps of several tiles.
const ROWS: usize = 256;

/// Bytes after the last row that the last tile of a step may read: a tile is at most as long as
/// the rows are a multiple of.
const READ_BEHIND: usize = ROWS * 128;

/// Bytes of x as halves for linears of `chunks`: made by a separate launch, or written by the phase before.
pub(super) fn x_bytes(chunks: usize, tokens: usize) -> usize {
    2 * chunks * CHUNK * tokens.next_multiple_of(ROWS) * 2
}

/// One kernel for each format, tile and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelKey {
    /// An index of the formats.
    pub(crate) format: i32,
    pub(crate) tokens: usize,
    /// Warps that multiply, 16 rows each.
    pub(crate) row_warps: usize,
    /// Segments of the columns of a block.
    pub(crate) segments: usize,
    /// 0, or 1 + the activation.
    pub(crate) gated: i32,
    pub(crate) experts: bool,
    /// Whether x is bytes.
    pub(crate) bytes: bool,
}

/// Groups of columns of x as bytes at most: what a block that makes a row has space for.
const MOST_GROUPS: usize = 512;

/// Columns of x as bytes that have one scale per token (`RowBytes::GROUP` of
/// `kernels/linear/byte_linear.cuh`).
fn byte_group(l: &LinearArgs) -> usize {
    if l.signs != 0 { 4 * CHUNK } else { 2 * CHUNK }
}

/// Whether a linear has x as bytes in large steps: its codes have one or two bits and one scale per row and
/// chunk, and its columns are whole groups that can be read four at a time.
pub(super) fn takes_bytes(config: &KernelConfig, limits: &Limits, l: &LinearArgs) -> bool {
    let cols = l.cols as usize;
    let whole = cols.is_multiple_of(byte_group(l)) && cols / byte_group(l) <= MOST_GROUPS;
    let aligned = [l.x.at, l.norm.weight].iter().all(|at| at.is_multiple_of(16));
    let by_four = aligned && l.x.stride % 4 == 0;
    limits.bytes && l.experts.used == 0 && config.has_placed(l) && whole && by_four
}

pub(super) struct TiledLinears {
    kernels: HashMap<KernelKey, Kernel>,
    prepare: Kernel,
    prepare_bytes: Kernel,
    limits: Limits,
    /// x that has or had a norm: made by a launch, or written by the phase before.
    made: Memory,
    /// x that the phase before has written.
    passed: Memory,
    norms: NormMemory,
    inputs: u64,
}

/// Parts of a linear phase that one launch computes: neighbours of one format.
fn runs(l: &LinearArgs) -> Vec<Range<usize>> {
    let parts = l.used_parts();
    let mut runs: Vec<Range<usize>> = vec![];
    for (i, part) in parts.iter().enumerate() {
        match runs.last_mut() {
            // gated parts have one format
            Some(run) if parts[run.start].format == part.format => run.end = i + 1,
            _ => runs.push(i..i + 1),
        }
    }
    runs
}

impl TiledLinears {
    /// The kernels of all linears among these phases.
    pub(super) fn sources(
        config: &KernelConfig,
        phases: &[Phase],
        limits: &Limits,
        rows: usize,
    ) -> Vec<KernelSource> {
        let keys = keys(config, phases, limits, rows);
        keys.into_iter().map(|key| linear_source(config, key, limits)).collect()
    }

    pub(super) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        config: &KernelConfig,
        phases: &[Phase],
        inputs: u64,
        max_rows: usize,
    ) -> Result<TiledLinears> {
        let limits = Limits::of(device);
        let mut kernels = HashMap::new();
        for key in keys(config, phases, &limits, max_rows) {
            let KernelSource { source, defines } = linear_source(config, key, &limits);
            let name = if key.bytes { "byte_linear" } else { "tiled_linear" };
            let kernel = compiler.module(source, &defines)?.kernel(name)?;
            kernels.insert(key, kernel.with_shared_memory(limits.shared_memory)?);
        }
        let bytes = |l: &LinearArgs| {
            x_bytes(
                l.chunks as usize,
                ExpertCounts::of(l).map_or(max_rows, |counts| counts.rows(recorded_tokens(max_rows))),
            )
        };
        let bytes = linears(phases).map(bytes).max().unwrap_or(0) / 2 + READ_BEHIND;
        let module = compiler.module(Source::PhaseLaunches, &config.defines())?;
        let (prepare, prepare_bytes) = (module.kernel("prepare")?, module.kernel("prepare_bytes")?);
        let (made, passed) = (device.allocate(bytes)?, device.allocate(bytes)?);
        let norms = NormMemory::new(device, linears(phases), max_rows)?;
        Ok(TiledLinears { kernels, prepare, prepare_bytes, limits, made, passed, norms, inputs })
    }

    /// Where a phase writes a value that is passed as halves, for a step of `rows`.
    pub(super) fn passed(&self, rows: usize, order: i32) -> HalfX {
        half_x(&self.passed, rows, order)
    }

    /// Launches a linear phase for up to `rows` rows; `sorted` are those of its experts.
    pub(super) fn launch(
        &self,
        l: &LinearArgs,
        passing: Passing,
        rows: usize,
        sorted: Option<SortedRows>,
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let half_x = |memory: &Memory, order: i32| match ExpertCounts::of(l) {
            None => half_x(memory, rows, order),
            Some(counts) => {
                let tokens = counts.rows(rows).next_multiple_of(ROWS) as i64;
                HalfX { at: memory.pointer(), tokens, order, pad: 0 }
            }
        };
        if passing.x_bytes {
            return self.launch_bytes(l, passing, rows);
        }
        let (x, factor) = match passing.x {
            XSource::Passed(factor) => (half_x(&self.passed, order(l)), factor),
            XSource::BeforeNorm => (half_x(&self.made, order(l)), NORMED_FACTOR),
            XSource::Made | XSource::MadeBeforeNorm => {
                let x = half_x(&self.made, order(l));
                let factor = match (passing.x, l.norm.kind) {
                    (XSource::MadeBeforeNorm, _) => NORMED_FACTOR,
                    (_, 0) => PASSED_FACTOR,
                    _ => 1.0,
                };
                let rows_of = sorted.map_or(0, |s| s.rows);
                let (linear, inputs) = (*l, self.inputs);
                let mut args =
                    PrepareArgs { linear, x, inputs, rows: rows_of, factor, ..PrepareArgs::default() };
                self.norms.complete(&mut args, passing, rows);
                let blocks = rows * l.experts.x_parts.max(1) as usize;
                // SAFETY: the struct is the kernel's; there is a block per row and part.
                unsafe { self.prepare.launch(Grid::new(blocks, 1, PREPARE_THREADS), &args)? };
                (x, factor)
            }
        };
        for run in runs(l) {
            let size = size(l, &run);
            let tiling = match (ExpertCounts::of(l), sorted) {
                (Some(counts), Some(sorted)) => {
                    let tiles = counts.tiles(rows, sorted.tile);
                    LinearTiling::of_tiles(size, sorted.tile, tiles, &self.limits)
                }
                _ => LinearTiling::of(size, rows, &self.limits),
            };
            let tiling = tiling.ok_or_else(no_space)?;
            let kernel = self.kernel(l, &run, tiling, false)?;
            let args = TiledArgs {
                x,
                y_half: match passing.y {
                    YTarget::Floats => HalfX::default(),
                    YTarget::Passed { order } => half_x(&self.passed, order),
                    YTarget::BeforeNorm { order, .. } => half_x(&self.made, order),
                },
                tiles: sorted.map_or(0, |s| s.tiles),
                pairs: sorted.map_or(0, |s| s.pairs),
                x_factor: 1.0 / factor,
                ..self.tiled_args(l, &run, tiling, passing)
            };
            // SAFETY: the struct is the kernel's; the grid, the stages and the shared
            // memory are the tiling's.
            unsafe { kernel.launch(grid(tiling), &args)? };
        }
        Ok(())
    }

    /// The same with x as bytes, which a launch makes from floats or from what the phase before has passed.
    fn launch_bytes(&self, l: &LinearArgs, passing: Passing, rows: usize) -> Result<()> {
        let (passed, factor) = match passing.x {
            XSource::Passed(factor) => (half_x(&self.passed, rows, PLAIN_ORDER), factor),
            _ => (HalfX::default(), 1.0),
        };
        let HalfX { at, tokens, .. } = half_x(&self.made, rows, order(l));
        let group = byte_group(l);
        // four bytes per token and group are after the bytes, and there is space for halves
        let ratios = at + l.cols as u64 * tokens as u64;
        let scales = ratios + (l.cols as usize / group) as u64 * tokens as u64 * 4;
        let x = ByteX { at, ratios, scales, tokens, group: group as i32, order: order(l) };
        let prepare = PrepareBytesArgs { linear: *l, passed, x, inputs: self.inputs };
        // SAFETY: the struct is the kernel's; there is a block per row.
        unsafe { self.prepare_bytes.launch(Grid::new(rows, 1, BYTES_THREADS), &prepare)? };
        for run in runs(l) {
            let tiling = LinearTiling::of_bytes(size(l, &run), rows, &self.limits);
            let kernel = self.kernel(l, &run, tiling, true)?;
            let tiled = TiledArgs {
                y_half: match passing.y {
                    YTarget::Passed { order } => half_x(&self.passed, rows, order),
                    YTarget::Floats | YTarget::BeforeNorm { .. } => HalfX::default(),
                },
                x_factor: 1.0 / factor,
                ..self.tiled_args(l, &run, tiling, passing)
            };
            // SAFETY: as above.
            unsafe { kernel.launch(grid(tiling), &ByteLinearArgs { tiled, x })? };
        }
        Ok(())
    }

    /// The kernel of a run of parts.
    fn kernel(
        &self,
        l: &LinearArgs,
        run: &Range<usize>,
        tiling: LinearTiling,
        bytes: bool,
    ) -> Result<&Kernel> {
        let LinearTiling { tokens, row_warps, segments, .. } = tiling;
        let (format, experts) = (l.part[run.start].format, l.experts.used > 0);
        let key = KernelKey { format, tokens, row_warps, segments, gated: l.gated, experts, bytes };
        let missing = || BackendError::Other(format!("a linear of {tokens} tokens was not compiled"));
        self.kernels.get(&key).ok_or_else(missing)
    }

    /// What linears of all forms of x have.
    fn tiled_args(
        &self,
        l: &LinearArgs,
        run: &Range<usize>,
        tiling: LinearTiling,
        passing: Passing,
    ) -> TiledArgs {
        TiledArgs {
            linear: *l,
            norms: self.norms.args(passing),
            inputs: self.inputs,
            y_factor: match passing.y {
                YTarget::Floats => 1.0,
                YTarget::Passed { .. } => PASSED_FACTOR,
                YTarget::BeforeNorm { .. } => NORMED_FACTOR,
            },
            first_part: run.start as i32,
            end_part: run.end as i32,
            splits: tiling.splits as i32,
            stages: tiling.stages as i32,
            ..TiledArgs::default()
        }
    }
}

fn grid(tiling: LinearTiling) -> Grid {
    let LinearTiling { blocks, threads, shared, splits, .. } = tiling;
    Grid { x: blocks, y: 1, threads, shared, cluster: splits }
}

fn no_space() -> BackendError {
    BackendError::Unsupported("a linear does not fit into the shared memory of this GPU".into())
}

/// In steps of one tile the rows of x follow each other closely, so that several chunks are copied together.
fn half_x(memory: &Memory, rows: usize, order: i32) -> HalfX {
    let tokens = whole_tile(rows).unwrap_or(rows.next_multiple_of(ROWS)) as i64;
    HalfX { at: memory.pointer(), tokens, order, pad: 0 }
}

fn linears(phases: &[Phase]) -> impl Iterator<Item = &LinearArgs> {
    phases.iter().filter_map(|phase| if let Phase::Linear(l) = phase { Some(l) } else { None })
}

fn size(l: &LinearArgs, run: &Range<usize>) -> LinearSize {
    let (chunks, record) = (l.chunks as usize, l.part[run.start].bytes as usize);
    if l.gated > 0 {
        let size = LinearSize::of_gated(l.part[0].tiles as usize, chunks, record);
        return if l.experts.used > 0 {
            LinearSize { gated_records: None, experts: true, ..size }
        } else {
            size
        };
    }
    let size = LinearSize::of_parts(l.part[run.clone()].iter().map(|p| p.tiles as usize), chunks, record);
    LinearSize { experts: l.experts.used > 0, ..size }
}

/// All kernels that steps of up to `max_rows` rows may need.
fn keys(config: &KernelConfig, phases: &[Phase], limits: &Limits, max_rows: usize) -> Vec<KernelKey> {
    let mut keys = vec![];
    let expert_tiles = experts::tiles(phases, limits);
    for l in linears(phases) {
        for run in runs(l) {
            let (format, gated) = (l.part[run.start].format, l.gated);
            let counts = ExpertCounts::of(l);
            let tiles = match counts {
                Some(counts) => {
                    let most = counts.tile(recorded_tokens(max_rows), &expert_tiles);
                    expert_tiles.iter().copied().filter(|n| Some(*n) <= most).collect()
                }
                None => tiles(size(l, &run).record, max_rows, limits),
            };
            for tokens in tiles {
                // a step of one tile, and of several
                let tilings =
                    [1, 2].map(|count| LinearTiling::of_tiles(size(l, &run), tokens, count, limits));
                for LinearTiling { row_warps, segments, .. } in tilings.into_iter().flatten() {
                    let experts = counts.is_some();
                    let bytes = false;
                    intern(
                        &mut keys,
                        KernelKey { format, tokens, row_warps, segments, gated, experts, bytes },
                    );
                }
            }
            if max_rows >= LEAST_BYTE_ROWS && takes_bytes(config, limits, l) {
                let (tokens, row_warps) = (BYTE_TILE, TILE_RECORDS);
                let key =
                    KernelKey { format, tokens, row_warps, segments: 1, gated, experts: false, bytes: true };
                intern(&mut keys, key);
            }
        }
    }
    keys
}

/// The source of a kernel.
pub(crate) fn linear_source(config: &KernelConfig, key: KernelKey, limits: &Limits) -> KernelSource {
    let record = config.formats[key.format as usize].bytes();
    let (source, tile) = match key.bytes {
        true => (Source::ByteLinear, TileSizes::of_bytes(record, limits)),
        false => (Source::TiledLinear, TileSizes::of(key.tokens, record, key.row_warps, limits)),
    };
    let mut defines = config.linear_defines(key.format as usize);
    defines.extend([
        (driver::TILE_TOKENS, key.tokens.to_string()),
        ("GATE", key.gated.to_string()),
        ("OF_EXPERTS", key.experts.to_string()),
        sizes(&tile.constants(key.segments)),
    ]);
    KernelSource { source, defines }
}
