//! Mixtures of experts: how many rows and tiles they have, and the launches beside their products
//! (`kernels/launches/experts.cu`).

use std::cell::Cell;
use std::sync::Arc;

use tern_graph::BackendError;

use super::linear_tiling::{EXPERT_TILES, Limits, fitting, recorded_tokens};
use crate::driver::{Compiler, Device, Grid, Kernel, KernelSource, Memory, Source};
use crate::shared::{
    EXPERT_ROWS, ExpertArgs, ExpertTile, LinearArgs, MOST_EXPERTS, MixArgs, PHASE_THREADS, PHASE_WARPS,
    Phase, ROUTE_WARPS, ROUTER_TOKENS, RouteArgs, RouterArgs, SORT_THREADS, SortArgs, View,
};

type Result<T> = std::result::Result<T, BackendError>;

/// The most tokens whose experts are chosen and sorted by the last block of the router.
const ONE_BLOCK: usize = PHASE_WARPS;
/// Blocks of the router, about: two per multiprocessor of a large GPU.
const ROUTER_BLOCKS: usize = 256;
/// Bytes of shared memory for rows of x in the router.
const ROUTER_X: usize = 96 << 10;
/// Words before the tiles.
const TILES_AT: usize = 4;
/// Bytes of a word.
const WORD: usize = 4;

/// How many experts there are, and how many a token uses. A pair is a token and one of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertCounts {
    pub(crate) experts: usize,
    pub(crate) used: usize,
}

impl ExpertCounts {
    /// `None` if a linear has no experts.
    pub(crate) fn of(l: &LinearArgs) -> Option<ExpertCounts> {
        let ExpertArgs { experts, used, .. } = l.experts;
        (used > 0).then_some(ExpertCounts { experts: experts as usize, used: used as usize })
    }

    pub(super) fn of_route(r: &RouteArgs) -> ExpertCounts {
        ExpertCounts { experts: r.experts as usize, used: r.used as usize }
    }

    /// Sorted rows at most: those of an expert begin at a multiple of `EXPERT_ROWS`.
    pub(crate) fn rows(self, tokens: usize) -> usize {
        let pairs = tokens * self.used;
        pairs + self.experts.min(pairs) * (EXPERT_ROWS - 1)
    }

    /// The number of tiles of at most `tile` sorted rows: each has rows of one expert.
    pub(crate) fn tiles(self, tokens: usize, tile: usize) -> usize {
        let pairs = tokens * self.used;
        pairs.min(pairs / tile + self.experts.min(pairs))
    }

    /// Rows of a tile, of those that kernels are compiled for: most experts have one tile.
    pub(super) fn tile(self, tokens: usize, tiles: &[usize]) -> Option<usize> {
        let mean = (tokens * self.used).div_ceil(self.experts);
        tiles.iter().copied().find(|&n| n >= mean + mean / 2).or(tiles.last().copied())
    }

    /// Bytes of the logits of steps of up to `tokens`.
    pub(crate) fn logits_bytes(self, tokens: usize) -> usize {
        self.experts * tokens * WORD
    }

    /// Bytes of their sorted rows.
    pub(crate) fn bytes(self, tokens: usize) -> usize {
        let tiles = self.tiles(tokens, EXPERT_TILES[0]) * size_of::<ExpertTile>();
        TILES_AT * WORD + tiles + (self.rows(tokens) + tokens * self.used) * WORD
    }
}

/// Where the sorted rows of a step are.
#[derive(Clone, Copy, Debug)]
pub(super) struct SortedRows {
    pub(super) tiles: u64,
    pub(super) pairs: u64,
    pub(super) rows: u64,
    /// Rows of a tile.
    pub(super) tile: usize,
}

/// The rows of a tile that all experts of a model have: those that fit each of their formats.
pub(super) fn tiles(phases: &[Phase], limits: &Limits) -> Vec<usize> {
    let fits = |n: &usize| {
        phases.iter().all(|phase| match phase {
            Phase::Linear(l) if l.experts.used > 0 => {
                let parts = l.used_parts();
                parts.iter().all(|p| fitting(p.bytes as usize, limits).contains(n))
            }
            _ => true,
        })
    };
    EXPERT_TILES.into_iter().filter(fits).collect()
}

/// Whether there are launches of experts among these phases.
pub(super) fn has_experts(phases: &[Phase]) -> bool {
    phases.iter().any(|phase| match phase {
        Phase::Linear(l) => l.experts.used > 0,
        Phase::Route(_) | Phase::Mix(_) => true,
        _ => false,
    })
}

/// The kernels of a model with experts.
pub(super) struct Experts {
    router: Kernel,
    route: Kernel,
    sort: Kernel,
    mix: Kernel,
    sorted: Memory,
    /// `[token][experts]`
    logits: Memory,
    /// Blocks of the router that are done.
    arrivals: Memory,
    tiles: Vec<usize>,
    reproducible: bool,
    inputs: u64,
    /// What was sorted last since experts were chosen.
    current: Cell<Option<(u64, ExpertCounts)>>,
}

impl Experts {
    /// The kernels that they need.
    pub(super) fn source() -> KernelSource {
        KernelSource { source: Source::Experts, defines: vec![] }
    }

    /// `None` if no linear has experts.
    pub(super) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        phases: &[Phase],
        inputs: u64,
        max_tokens: usize,
    ) -> Result<Option<Experts>> {
        if !has_experts(phases) {
            return Ok(None);
        }
        let counts = || {
            phases.iter().filter_map(|phase| match phase {
                Phase::Linear(l) => ExpertCounts::of(l),
                Phase::Route(r) => Some(ExpertCounts::of_route(r)),
                _ => None,
            })
        };
        let most = |bytes: fn(ExpertCounts, usize) -> usize| {
            counts().map(|c| bytes(c, recorded_tokens(max_tokens))).max().unwrap_or(0)
        };
        let shared = phases.iter().map(|p| if let Phase::Route(r) = p { router_shared(r) } else { 0 });
        let arrivals = device.allocate(WORD)?;
        arrivals.clear()?;
        let module = compiler.module(Source::Experts, &[])?;
        Ok(Some(Experts {
            router: module.kernel("router")?.with_shared_memory(shared.max().unwrap_or(0))?,
            route: module.kernel("route")?,
            sort: module.kernel("sort_experts")?,
            mix: module.kernel("mix")?,
            sorted: device.allocate(most(ExpertCounts::bytes))?,
            logits: device.allocate(most(ExpertCounts::logits_bytes))?,
            arrivals,
            tiles: tiles(phases, &Limits::of(device)),
            reproducible: device.arithmetic.reproducible,
            inputs,
            current: Cell::new(None),
        }))
    }

    /// The launches of a step begin: nothing is sorted yet.
    pub(super) fn begin(&self) {
        self.current.set(None);
    }

    pub(super) fn route(&self, args: &RouteArgs, tokens: usize) -> Result<()> {
        self.current.set(None);
        let mut args = RouteArgs { inputs: self.inputs, ..*args };
        if args.router.w != 0 {
            let stride = i64::from(args.experts);
            args.logits = View { at: self.logits.pointer(), stride, ..View::default() };
            self.router(&args, tokens)?;
            if tokens <= ONE_BLOCK {
                return Ok(());
            }
        }
        // SAFETY: the struct is the kernel's; there is a warp per token.
        unsafe { self.route.launch(Grid::new(tokens.div_ceil(ROUTE_WARPS), 1, ROUTE_WARPS * 32), &args) }
    }

    /// Logits of a linear; in small steps the last block also chooses experts and sorts their rows.
    fn router(&self, args: &RouteArgs, tokens: usize) -> Result<()> {
        let small = tokens <= ONE_BLOCK;
        let counts = ExpertCounts::of_route(args);
        // one token alone is normalised in another order
        let each = if self.reproducible { router_tokens(args) } else { router_tokens(args).min(tokens) };
        // the fewer tokens, the more blocks share the weights
        let experts = (counts.experts * tokens.div_ceil(each)).div_ceil(ROUTER_BLOCKS);
        let experts = experts.next_multiple_of(PHASE_WARPS).min(counts.experts.next_multiple_of(PHASE_WARPS));
        let router = RouterArgs {
            route: *args,
            sort: if small { self.sort_args(args.y.at, counts, tokens)?.0 } else { SortArgs::default() },
            arrivals: if small { self.arrivals.pointer() } else { 0 },
            experts: experts as i32,
            tokens: each as i32,
        };
        let grid = Grid::new(counts.experts.div_ceil(experts), tokens.div_ceil(each), PHASE_THREADS);
        // SAFETY: the struct is the kernel's; blocks share all experts and tokens.
        unsafe { self.router.launch(Grid { shared: router_shared(args), ..grid }, &router)? };
        self.current.set(small.then_some((args.y.at, counts)));
        Ok(())
    }

    pub(super) fn mix(&self, args: &MixArgs, tokens: usize) -> Result<()> {
        let args = MixArgs { inputs: self.inputs, ..*args };
        let blocks = (args.width as usize).div_ceil(PHASE_THREADS);
        // SAFETY: the struct is the kernel's; there is a thread per column of each token.
        unsafe { self.mix.launch(Grid::new(blocks, tokens, PHASE_THREADS), &args) }
    }

    /// The sorted rows of a linear's experts, for steps of up to `tokens`. Linears of one route share them.
    pub(super) fn sorted(
        &self,
        experts: &ExpertArgs,
        counts: ExpertCounts,
        tokens: usize,
    ) -> Result<SortedRows> {
        let (args, sorted) = self.sort_args(experts.route, counts, tokens)?;
        let current = Some((experts.route, counts));
        if self.current.replace(current) != current {
            // SAFETY: the struct is the kernel's, one block sorts, and its memory is that of
            // `ExpertCounts::bytes`.
            unsafe { self.sort.launch(Grid::new(1, 1, SORT_THREADS), &args)? };
        }
        Ok(sorted)
    }

    fn sort_args(&self, route: u64, counts: ExpertCounts, tokens: usize) -> Result<(SortArgs, SortedRows)> {
        let none =
            || BackendError::Unsupported("experts do not fit into the shared memory of this GPU".into());
        let tile = counts.tile(tokens, &self.tiles).ok_or_else(none)?;
        let tiles = self.sorted.pointer();
        let pairs = tiles + (TILES_AT * WORD + counts.tiles(tokens, tile) * size_of::<ExpertTile>()) as u64;
        let rows = pairs + (counts.rows(tokens) * WORD) as u64;
        let args = SortArgs {
            route,
            inputs: self.inputs,
            tiles,
            pairs,
            rows,
            experts: counts.experts as i32,
            used: counts.used as i32,
            tile: tile as i32,
            pad: 0,
        };
        Ok((args, SortedRows { tiles, pairs, rows, tile }))
    }
}

/// Tokens of a block of the router: their rows of x are in shared memory.
fn router_tokens(args: &RouteArgs) -> usize {
    (ROUTER_X / (args.router.cols.max(1) as usize * WORD)).clamp(1, ROUTER_TOKENS)
}

/// Shared memory of a block of the router: rows of x, and then what choosing and sorting need.
fn router_shared(args: &RouteArgs) -> usize {
    let choosing = PHASE_WARPS * MOST_EXPERTS * 2 * WORD;
    (router_tokens(args) * args.router.cols as usize * WORD).max(choosing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN: ExpertCounts = ExpertCounts { experts: 128, used: 8 };

    #[test]
    fn most_experts_have_one_tile() {
        let tile = |tokens| QWEN.tile(tokens, &EXPERT_TILES).unwrap();
        assert_eq!([1, 32, 64, 128, 512, 2048].map(tile), [8, 8, 8, 16, 48, 128]);
        assert_eq!(QWEN.tile(2048, &[8, 16]), Some(16)); // the largest that fits
    }

    /// However pairs are spread over experts, their tiles and rows fit.
    #[test]
    fn bounds_hold_for_any_routing() {
        for tokens in [1, 2, 7, 33, 200] {
            for tile in EXPERT_TILES {
                for spread in [8, 9, 64, 128] {
                    let pairs = tokens * QWEN.used;
                    let mut counts = vec![0usize; spread];
                    (0..pairs).for_each(|i| counts[i * i % spread] += 1);
                    let tiles: usize = counts.iter().map(|c| c.div_ceil(tile)).sum();
                    let rows: usize = counts.iter().map(|c| c.next_multiple_of(EXPERT_ROWS)).sum();
                    assert!(tiles <= QWEN.tiles(tokens, tile) && rows <= QWEN.rows(tokens));
                }
            }
        }
    }
}
