//! The attention plan of a step: slice and position of every token, and which tokens are computed together.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use tern_graph::{Attention, Graph, Op, Step};

use crate::attention::kv::Kv;
use crate::memory::lines::Refused;
use crate::memory::shared::Shared;

/// Tokens of a slice that share the keys and values they read.
const ATTEND_TOKENS: usize = 16;
/// Partial results that fit the memory: tokens times runs of all split tiles.
const PARTS: usize = 2048;

/// The plan of one step after the other, in memory that is reused.
#[derive(Default)]
pub(crate) struct AttendPlan {
    /// Slice and position of every token.
    pub(crate) tokens: Vec<(usize, usize)>,
    /// Tokens that attend together.
    pub(crate) blocks: Vec<AttendTile>,
    pub(crate) parts: PartialResults,
}

/// Tokens of a slice that attend together: to all positions, or to one run of them.
pub(crate) struct AttendTile {
    pub(crate) slice: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) cut: Option<SplitRun>,
}

/// One run of a tile that is split: threads compute the runs separately, and the last one joins them.
pub(crate) struct SplitRun {
    pub(crate) run: usize,
    /// Runs of this tile.
    runs: usize,
    /// Row of its first partial result.
    first: usize,
    /// Number of tiles split before it.
    index: usize,
}

impl SplitRun {
    /// Row of the partial result of a run and a token.
    pub(crate) fn row(&self, run: usize, token: usize, tokens: usize) -> usize {
        self.first + run * tokens + token
    }
}

/// Results of runs until they are joined: `[rows, heads, 2 + v_dim]`
#[derive(Default)]
pub(crate) struct PartialResults {
    /// Floats per row.
    width: usize,
    floats: Shared<f32>,
    /// Heads of the widest attention.
    heads: usize,
    /// Completed runs per head of each split tile.
    done: Vec<AtomicU32>,
}

impl AttendPlan {
    /// Reserves memory for steps of up to `tokens` tokens.
    pub(crate) fn reserve(&mut self, graph: &Graph, kv: Option<&Kv>, tokens: usize) -> Result<(), Refused> {
        self.tokens.reserve(tokens.saturating_sub(self.tokens.len()));
        self.blocks.reserve((tokens + PARTS).saturating_sub(self.blocks.len()));
        let runs = kv.map_or(0, |kv| (kv.spec.pages * kv.page_len()).div_ceil(kv.run_len()));
        if runs > 1 {
            self.parts.reserve(graph, PARTS.min(tokens * runs))?;
        }
        Ok(())
    }

    /// Resets what a failed step has left incomplete.
    pub(crate) fn forget(&mut self) {
        self.parts.done.iter_mut().for_each(|d| *d.get_mut() = 0);
    }

    /// Sets the plan of this step.
    pub(crate) fn set(&mut self, step: &Step, kv: Option<&Kv>) {
        self.tokens.clear();
        self.blocks.clear();
        let run_len = kv.map_or(usize::MAX, Kv::run_len);
        let (mut first, mut index) = (0, 0);
        for (slice, of) in step.slices.iter().enumerate() {
            let (row, end) = (self.tokens.len(), self.tokens.len() + of.len);
            self.tokens.extend((of.position..of.position + of.len).map(|p| (slice, p)));
            // splitting changes no result: the runs are always the same, and joined in the same order
            let runs = (of.position + of.len).div_ceil(run_len);
            if runs > 1 && of.len <= ATTEND_TOKENS && (first + runs * of.len) <= self.parts.rows() {
                let cut = |run: usize| SplitRun { run, runs, first, index };
                self.blocks.extend((0..runs).map(|run| AttendTile {
                    slice,
                    rows: row..end,
                    cut: Some(cut(run)),
                }));
                (first, index) = (first + runs * of.len, index + 1);
            } else {
                let tokens = |first: usize| first..end.min(first + ATTEND_TOKENS);
                let blocks = (row..end).step_by(ATTEND_TOKENS);
                self.blocks.extend(blocks.map(|first| AttendTile { slice, rows: tokens(first), cut: None }));
            }
        }
    }
}

impl PartialResults {
    fn reserve(&mut self, graph: &Graph, rows: usize) -> Result<(), Refused> {
        let width = PartialResults::width(graph).max(self.width);
        let rows = rows.max(self.rows());
        if width * rows > self.floats.len() {
            self.floats = Shared::new(width * rows)?;
        }
        self.heads = attends(graph).map(|a| a.heads).max().unwrap_or(0).max(self.heads);
        self.width = width;
        // a split tile has at least two runs
        self.done.resize_with(self.done.len().max(rows / 2 * self.heads), AtomicU32::default);
        Ok(())
    }

    /// Floats per row of the widest attention.
    fn width(graph: &Graph) -> usize {
        attends(graph).map(|a| a.heads * (2 + a.v_dim)).max().unwrap_or(0)
    }

    /// Bytes of the largest number of partial results.
    pub(crate) fn bytes(graph: &Graph) -> usize {
        PARTS * PartialResults::width(graph) * size_of::<f32>()
    }

    fn rows(&self) -> usize {
        self.floats.len().checked_div(self.width).unwrap_or(0)
    }

    fn range(&self, row: usize, head: usize, v_dim: usize) -> Range<usize> {
        let at = row * self.width + head * (2 + v_dim);
        at..at + 2 + v_dim
    }

    /// One head's largest score, sum of weights and results.
    ///
    /// # Safety
    /// No thread writes it before the next barrier.
    pub(crate) unsafe fn part(&self, row: usize, head: usize, v_dim: usize) -> &[f32] {
        // SAFETY: the contract of this function.
        unsafe { self.floats.get(self.range(row, head, v_dim)) }
    }

    /// # Safety
    /// No other thread accesses it before `is_last` has returned `true`.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts, by the function's contract")]
    pub(crate) unsafe fn part_mut(&self, row: usize, head: usize, v_dim: usize) -> &mut [f32] {
        // SAFETY: the contract of this function.
        unsafe { self.floats.get_mut(self.range(row, head, v_dim)) }
    }

    /// Counts a run of a head (or of the heads that begin with it) as complete, and returns whether it was
    /// the last one: the writes of the others are visible then.
    pub(crate) fn is_last(&self, cut: &SplitRun, head: usize) -> bool {
        let done = &self.done[cut.index * self.heads + head];
        let last = done.fetch_add(1, Ordering::AcqRel) as usize + 1 == cut.runs;
        if last {
            done.store(0, Ordering::Relaxed); // for the next layer or step
        }
        last
    }
}

fn attends(graph: &Graph) -> impl Iterator<Item = &Attention> {
    graph.nodes.iter().filter_map(|n| if let Op::Attend { args, .. } = &n.op { Some(args) } else { None })
}
