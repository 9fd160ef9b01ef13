//! Attention over pages: the heads of a group and some tokens share the keys and values they read.
//!
//! Positions are processed run by run, and the runs are joined in order, whether one thread computed them or
//! several: each result is summed in the same order, independent of the rest of the batch.

use std::ops::Range;

use tern_graph::{Attention, KvCells, Slice};

use crate::attention::attend_plan::{PartialResults, SplitRun};
use crate::attention::gemm::Gemm;
use crate::attention::kv::{Kv, KvCell, Slot};
use crate::attention::softmax::{SoftmaxStats, join};
use crate::math::exp;
use crate::vectors::Vector;

/// The attention loops of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct AttentionKernels {
    /// One run: [`Attend::run`]
    pub(crate) run: unsafe fn(&Attend<'_>, &Block<'_>, run: usize, &mut AttendWorkspace),
    /// Scores to weights: [`softmax`](crate::attention::softmax::softmax)
    pub(crate) softmax: fn(&mut [f32], cap: Option<f32>) -> SoftmaxStats,
    /// To f16, rounded to nearest.
    pub(crate) store_f16: fn(x: &[f32], out: &mut [u16]),
}

/// One layer's attention in a step.
pub(crate) struct Attend<'a> {
    pub(crate) kernels: AttentionKernels,
    pub(crate) kv: &'a Kv,
    pub(crate) layer: usize,
    pub(crate) args: &'a Attention,
    /// One more score per head.
    pub(crate) sinks: Option<&'a [f32]>,
}

impl Attend<'_> {
    /// Stores one head's key and value of one token.
    ///
    /// # Safety
    /// No other thread accesses this head of this position before the next barrier.
    pub(crate) unsafe fn store(
        &self,
        slice: &Slice,
        position: usize,
        head: usize,
        key: &[f32],
        value: &[f32],
        workspace: &mut Vec<u16>,
    ) {
        let (layer, page_len) = (&self.kv.layers[self.layer], self.kv.page_len());
        let page = slice.table(layer.windowed)[position / page_len];
        let at = Slot { page, head, slot: position % page_len };
        // SAFETY: the contract of this function.
        unsafe {
            self.kv.store(self.kernels.store_f16, key, &layer.keys, &at, workspace);
            self.kv.store(self.kernels.store_f16, value, &layer.values, &at, workspace);
        }
    }

    /// Some heads of one group at consecutive positions of a slice, or one run of them if they were split.
    /// The last run returns `true` and leaves all results in `workspace.results`: `[tokens, heads, v_dim]`.
    ///
    /// # Safety
    /// No thread writes this layer's pages before the next barrier, and no other thread has
    /// this run of these heads.
    pub(crate) unsafe fn attend<'q>(
        &self,
        block: &Block<'_>,
        cut: Option<(&SplitRun, &PartialResults)>,
        query: impl Fn(usize, usize) -> &'q [f32],
        workspace: &mut AttendWorkspace,
    ) -> bool {
        let (runs, heads, v_dim) = (self.runs(block), block.heads.len(), self.args.v_dim);
        workspace.start(self, block, query);
        let Some((cut, parts)) = cut else {
            for run in runs {
                // SAFETY: the contract of this function.
                unsafe { (self.kernels.run)(self, block, run, workspace) };
                workspace.join(v_dim);
            }
            workspace.divide(v_dim, self.sinks_of(block));
            return true;
        };
        let queries = block.tokens * heads;
        if runs.contains(&cut.run) {
            // SAFETY: the contract of this function.
            unsafe { (self.kernels.run)(self, block, cut.run, workspace) };
            for i in 0..queries {
                let (token, head) = (i / heads, block.heads.start + i % heads);
                // SAFETY: the contract of this function.
                let part = unsafe { parts.part_mut(cut.row(cut.run, token, block.tokens), head, v_dim) };
                part[..2].copy_from_slice(&[workspace.stats[i].max, workspace.stats[i].sum]);
                part[2..].copy_from_slice(&workspace.part[i * v_dim..][..v_dim]);
            }
        }
        if !parts.is_last(cut, block.heads.start) {
            return false;
        }
        for run in runs {
            for i in 0..queries {
                let (token, head) = (i / heads, block.heads.start + i % heads);
                // SAFETY: all others are done.
                let part = unsafe { parts.part(cut.row(run, token, block.tokens), head, v_dim) };
                let stats = SoftmaxStats { max: part[0], sum: part[1] };
                let results = &mut workspace.results[i * v_dim..][..v_dim];
                join(&mut workspace.totals[i], results, stats, &part[2..]);
            }
        }
        workspace.divide(v_dim, self.sinks_of(block));
        true
    }

    /// The sinks of a block's heads.
    fn sinks_of(&self, block: &Block<'_>) -> Option<&[f32]> {
        self.sinks.map(|sinks| &sinks[block.heads.clone()])
    }

    /// The runs with positions that a block attends to.
    fn runs(&self, block: &Block<'_>) -> Range<usize> {
        let run = self.kv.run_len();
        let seen = self.seen(block);
        seen.start / run..seen.end.div_ceil(run)
    }

    /// One run of a block: fills `workspace.part` and `workspace.stats` for all queries.
    ///
    /// # Safety
    /// That of [`Attend::attend`], and the processor has the instruction set of `V`.
    #[inline(always)]
    pub(crate) unsafe fn run<V: Vector>(
        &self,
        block: &Block<'_>,
        run: usize,
        workspace: &mut AttendWorkspace,
    ) {
        // SAFETY: the contract of this function.
        unsafe {
            match self.kv.spec.cells {
                KvCells::F32 => self.run_of::<V, f32>(block, run, workspace),
                KvCells::F16 => self.run_of::<V, u16>(block, run, workspace),
                KvCells::Int8 | KvCells::Fp8 => self.run_of::<V, i8>(block, run, workspace),
            }
        }
    }

    #[inline(always)]
    unsafe fn run_of<V: Vector, C: KvCell>(
        &self,
        block: &Block<'_>,
        run: usize,
        workspace: &mut AttendWorkspace,
    ) {
        let (kv, layer, a) = (self.kv, &self.kv.layers[self.layer], self.args);
        let (page_len, stride) = (kv.page_len(), kv.run_len());
        let (heads, queries) = (block.heads.len(), block.tokens * block.heads.len());
        let kv_head = block.heads.start / (a.heads / a.kv_heads);
        let base = run * stride;
        let end = base + stride;
        let seen = self.seen(block);
        let seen = seen.start.max(base)..seen.end.min(end);
        let pages = seen.start / page_len..seen.end.div_ceil(page_len);
        // only those that the first token sees: earlier entries may name pages of other sequences
        let table = block.slice.table(layer.windowed);
        let page_of = |p: usize| table[p];
        workspace.part[..queries * a.v_dim].fill(0.0);

        for p in pages.clone() {
            // SAFETY: the contract of this function.
            let (cells, next, scales) = unsafe {
                let next = if p + 1 < pages.end {
                    kv.page::<C>(&layer.keys, page_of(p + 1), kv_head)
                } else {
                    kv.page::<C>(&layer.values, page_of(pages.start), kv_head)
                };
                let cells = kv.page::<C>(&layer.keys, page_of(p), kv_head);
                (cells, next, kv.scales(&layer.keys, page_of(p), kv_head))
            };
            let mut product = Gemm {
                rows: queries,
                inner: a.head_dim,
                cols: page_len,
                a: &workspace.queries,
                a_stride: a.head_dim,
                b: cells,
                b_stride: page_len,
                next: next.as_ptr(),
                c: &mut workspace.scores[p * page_len - base..],
                c_stride: stride,
                add: false,
            };
            // SAFETY: the contract of this function.
            unsafe { product.run::<V>() };
            if let Some(scales) = scales {
                workspace.scale(scales, p * page_len - base, stride, queries);
            }
        }
        for i in 0..queries {
            let position = block.position + i / heads;
            let visible = self.visible(block, position);
            let (from, to) = (visible.start.max(base), end.min(visible.end));
            if from >= to {
                workspace.stats[i] = SoftmaxStats::NONE;
                continue;
            }
            let scores = &mut workspace.scores[i * stride..][from - base..to - base];
            if a.alibi.is_some() {
                let slope = a.slope(block.heads.start + i % heads);
                for (p, score) in (from..to).zip(scores.iter_mut()) {
                    *score -= slope * position.abs_diff(p) as f32;
                }
            }
            workspace.stats[i] = (self.kernels.softmax)(scores, a.softcap);
        }
        // positions that all tokens attend to
        let all_from = self.visible(block, block.position + block.tokens - 1).start;
        let all_to = self.visible(block, block.position).end;
        for p in pages.clone() {
            // SAFETY: the contract of this function.
            let (cells, next, scales) = unsafe {
                let next = page_of(if p + 1 < pages.end { p + 1 } else { p });
                let next = kv.page::<C>(&layer.values, next, kv_head);
                let cells = kv.page::<C>(&layer.values, page_of(p), kv_head);
                (cells, next, kv.scales(&layer.values, page_of(p), kv_head))
            };
            if let Some(scales) = scales {
                workspace.scale(scales, p * page_len - base, stride, queries);
            }
            let (start, end) = (p * page_len, seen.end.min((p + 1) * page_len));
            let from = all_from.clamp(start, end);
            let to = all_to.clamp(from, end);
            // tokens are computed together if all of them attend to the same positions
            for (part, together) in [(start..from, 1), (from..to, block.tokens), (to..end, 1)] {
                for t in (0..block.tokens).step_by(together) {
                    let visible = self.visible(block, block.position + t);
                    let (from, to) = (part.start.max(visible.start), part.end.min(visible.end));
                    if from >= to {
                        continue;
                    }
                    let mut product = Gemm {
                        rows: together * heads,
                        inner: to - from,
                        cols: a.v_dim,
                        a: &workspace.scores[t * heads * stride + from - base..],
                        a_stride: stride,
                        b: &cells[(from - start) * a.v_dim..],
                        b_stride: a.v_dim,
                        next: next.as_ptr().wrapping_add((from - start) * a.v_dim),
                        c: &mut workspace.part[t * heads * a.v_dim..],
                        c_stride: a.v_dim,
                        add: true,
                    };
                    // SAFETY: the contract of this function.
                    unsafe { product.run::<V>() };
                }
            }
        }
    }

    /// The positions that a token of a block at `position` attends to.
    #[inline(always)]
    fn visible(&self, block: &Block<'_>, position: usize) -> Range<usize> {
        self.args.visible(block.slice, position)
    }

    /// The positions that any token of a block attends to.
    #[inline(always)]
    fn seen(&self, block: &Block<'_>) -> Range<usize> {
        let last = block.position + block.tokens - 1;
        self.visible(block, block.position).start..self.visible(block, last).end
    }
}

/// Tokens and heads that share the keys and values they read.
pub(crate) struct Block<'a> {
    pub(crate) slice: &'a Slice,
    /// Position of the first token.
    pub(crate) position: usize,
    pub(crate) tokens: usize,
    /// Heads of one group.
    pub(crate) heads: Range<usize>,
}

/// A thread's workspace.
#[derive(Default)]
pub(crate) struct AttendWorkspace {
    queries: Vec<f32>,
    /// Scores of one run. `[queries, run_len]`
    scores: Vec<f32>,
    /// Results of one run. `[queries, v_dim]`
    part: Vec<f32>,
    stats: Vec<SoftmaxStats>,
    /// Statistics of all runs so far.
    totals: Vec<SoftmaxStats>,
    pub(crate) results: Vec<f32>,
}

impl AttendWorkspace {
    /// Sizes the buffers for a block, copies its queries scaled, and clears the results.
    fn start<'q>(
        &mut self,
        attend: &Attend<'_>,
        block: &Block<'_>,
        query: impl Fn(usize, usize) -> &'q [f32],
    ) {
        let (a, heads) = (attend.args, block.heads.len());
        let queries = block.tokens * heads;
        self.queries.resize(queries * a.head_dim, 0.0);
        self.scores.resize(queries * attend.kv.run_len(), 0.0);
        self.part.resize(queries * a.v_dim, 0.0);
        self.stats.resize(queries, SoftmaxStats::NONE);
        self.totals.clear();
        self.totals.resize(queries, SoftmaxStats::NONE);
        self.results.clear();
        self.results.resize(queries * a.v_dim, 0.0);
        for (i, scaled) in self.queries.chunks_exact_mut(a.head_dim).enumerate() {
            let query = query(i / heads, block.heads.start + i % heads);
            let scale = a.scale_at(block.position + i / heads);
            scaled.iter_mut().zip(query).for_each(|(s, q)| *s = q * scale);
        }
    }

    /// Multiplies all queries' scores in some columns by these factors.
    #[inline(always)]
    fn scale(&mut self, scales: &[f32], first: usize, stride: usize, queries: usize) {
        for i in 0..queries {
            let scores = &mut self.scores[i * stride + first..][..scales.len()];
            scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
        }
    }

    /// Joins the run with the results.
    fn join(&mut self, v_dim: usize) {
        let results = self.results.chunks_exact_mut(v_dim).zip(&mut self.totals);
        let parts = self.part.chunks_exact(v_dim).zip(&self.stats);
        for ((results, total), (part, stats)) in results.zip(parts) {
            join(total, results, *stats, part);
        }
    }

    /// Divides the sums of weighted values by the sum of the weights, with that of the head's sink.
    fn divide(&mut self, v_dim: usize, sinks: Option<&[f32]>) {
        for (i, (results, total)) in self.results.chunks_exact_mut(v_dim).zip(&self.totals).enumerate() {
            let sink = sinks.map_or(0.0, |sinks| exp::<false>(sinks[i % sinks.len()] - total.max));
            results.iter_mut().for_each(|r| *r /= total.sum + sink);
        }
    }
}
