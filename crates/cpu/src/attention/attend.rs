//! Attention over pages: the heads of a group and some tokens share the keys and values they read.
//!
//! Positions are seen run by run, and the runs are joined in order, whether one thread went through them or several:
//! each result is summed in the same order, whatever stands beside it.

use std::ops::Range;

use tern_graph::{Attention, KvCells, Slice};

use crate::attention::attend_plan::{PartialResults, SplitRun};
use crate::attention::gemm::Gemm;
use crate::attention::kv::{Kv, KvCell, Slot};
use crate::attention::softmax::{SoftmaxStats, join};
use crate::vectors::Vector;

/// An instruction set's loops of attention.
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
}

impl Attend<'_> {
    /// Keeps one head's key and value of one token.
    ///
    /// # Safety
    /// No other thread touches this head of this position before the next barrier.
    pub(crate) unsafe fn store(
        &self,
        slice: &Slice,
        position: usize,
        head: usize,
        (key, value): (&[f32], &[f32]),
        workspace: &mut Vec<u16>,
    ) {
        let (layer, page_len) = (&self.kv.layers[self.layer], self.kv.page_len);
        let at = Slot { page: slice.pages[position / page_len], head, slot: position % page_len };
        // SAFETY: the caller's promise.
        unsafe {
            self.kv.store(self.kernels.store_f16, key, (&layer.keys, &at, true), workspace);
            self.kv.store(self.kernels.store_f16, value, (&layer.values, &at, false), workspace);
        }
    }

    /// Some heads of one group at some consecutive positions of a slice, or one run of them where they were cut. Whoever
    /// is the last has `true`, and all results in `workspace.results`: `[tokens, heads, v_dim]`.
    ///
    /// # Safety
    /// No thread writes this layer's pages before the next barrier, and no other has this run of these heads.
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
                // SAFETY: the caller's promise.
                unsafe { (self.kernels.run)(self, block, run, workspace) };
                workspace.join(v_dim);
            }
            workspace.divide(v_dim);
            return true;
        };
        let queries = block.tokens * heads;
        if runs.contains(&cut.run) {
            // SAFETY: the caller's promise.
            unsafe { (self.kernels.run)(self, block, cut.run, workspace) };
            for i in 0..queries {
                let (token, head) = (i / heads, block.heads.start + i % heads);
                // SAFETY: the caller's promise.
                let part = unsafe { parts.part_mut(cut.row(cut.run, token, block.tokens), head, v_dim) };
                part[..2].copy_from_slice(&[workspace.masses[i].max, workspace.masses[i].sum]);
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
                let mass = SoftmaxStats { max: part[0], sum: part[1] };
                join(
                    (&mut workspace.totals[i], &mut workspace.results[i * v_dim..][..v_dim]),
                    (mass, &part[2..]),
                );
            }
        }
        workspace.divide(v_dim);
        true
    }

    /// The runs of which a block sees something.
    fn runs(&self, block: &Block<'_>) -> Range<usize> {
        let run = self.kv.run_len();
        self.first(block.position) / run..(block.position + block.tokens).div_ceil(run)
    }

    /// One run of a block: `workspace.part` and `workspace.masses`, of all queries.
    ///
    /// # Safety
    /// That of [`Attend::attend`], and the instruction set of `V` is there.
    #[inline(always)]
    pub(crate) unsafe fn run<V: Vector>(
        &self,
        block: &Block<'_>,
        run: usize,
        workspace: &mut AttendWorkspace,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.kv.cells {
                KvCells::F16 => self.run_of::<V, u16>(block, run, workspace),
                KvCells::Int8 => self.run_of::<V, i8>(block, run, workspace),
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
        let (page_len, stride) = (kv.page_len, kv.run_len());
        let (heads, queries) = (block.heads.len(), block.tokens * block.heads.len());
        let kv_head = block.heads.start / (a.heads / a.kv_heads);
        let base = run * stride;
        let (last, end) = (block.position + block.tokens - 1, base + stride);
        let seen = self.first(block.position).max(base)..end.min(last + 1);
        let pages = seen.start / page_len..seen.end.div_ceil(page_len);
        let page_of = |p: usize| block.slice.pages[p];
        workspace.part[..queries * a.v_dim].fill(0.0);

        for p in pages.clone() {
            // SAFETY: the caller's promise.
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
            // SAFETY: the caller's promise.
            unsafe { product.run::<V>() };
            if let Some(scales) = scales {
                workspace.scale(scales, p * page_len - base, stride, queries);
            }
        }
        for i in 0..queries {
            let position = block.position + i / heads;
            let (from, to) = (self.first(position).max(base), end.min(position + 1));
            if from >= to {
                workspace.masses[i] = SoftmaxStats::NONE;
                continue;
            }
            let scores = &mut workspace.scores[i * stride..][from - base..to - base];
            workspace.masses[i] = (self.kernels.softmax)(scores, a.softcap);
        }
        // what all tokens see
        let (all_from, all_to) = (self.first(last), block.position + 1);
        for p in pages.clone() {
            // SAFETY: the caller's promise.
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
            // tokens go together where all of them see the same
            for (part, together) in [(start..from, 1), (from..to, block.tokens), (to..end, 1)] {
                for t in (0..block.tokens).step_by(together) {
                    let position = block.position + t;
                    let (from, to) = (part.start.max(self.first(position)), part.end.min(position + 1));
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
                    // SAFETY: the caller's promise.
                    unsafe { product.run::<V>() };
                }
            }
        }
    }

    /// The first position that one at `position` sees.
    fn first(&self, position: usize) -> usize {
        self.args.window.map_or(0, |w| (position + 1).saturating_sub(w))
    }
}

/// Tokens and heads that share the keys and values they read.
pub(crate) struct Block<'a> {
    pub(crate) slice: &'a Slice,
    /// Of the first token.
    pub(crate) position: usize,
    pub(crate) tokens: usize,
    /// Of one group.
    pub(crate) heads: Range<usize>,
}

/// What a thread works in.
#[derive(Default)]
pub(crate) struct AttendWorkspace {
    queries: Vec<f32>,
    /// Of one run: `[queries, run_len]`
    scores: Vec<f32>,
    /// Of one run: `[queries, v_dim]`
    part: Vec<f32>,
    masses: Vec<SoftmaxStats>,
    /// Of all runs so far.
    totals: Vec<SoftmaxStats>,
    pub(crate) results: Vec<f32>,
}

impl AttendWorkspace {
    /// Room for a block's queries, which are scaled, and no results yet.
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
        self.masses.resize(queries, SoftmaxStats::NONE);
        self.totals.clear();
        self.totals.resize(queries, SoftmaxStats::NONE);
        self.results.clear();
        self.results.resize(queries * a.v_dim, 0.0);
        for (i, scaled) in self.queries.chunks_exact_mut(a.head_dim).enumerate() {
            let query = query(i / heads, block.heads.start + i % heads);
            scaled.iter_mut().zip(query).for_each(|(s, q)| *s = q * a.scale);
        }
    }

    /// What queries have in some columns, times these.
    #[inline(always)]
    fn scale(&mut self, scales: &[f32], first: usize, stride: usize, queries: usize) {
        for i in 0..queries {
            let scores = &mut self.scores[i * stride + first..][..scales.len()];
            scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
        }
    }

    /// Adds the run to the results.
    fn join(&mut self, v_dim: usize) {
        let results = self.results.chunks_exact_mut(v_dim).zip(&mut self.totals);
        let parts = self.part.chunks_exact(v_dim).zip(&self.masses);
        for ((results, total), (part, mass)) in results.zip(parts) {
            join((total, results), (*mass, part));
        }
    }

    /// Results are sums of weights times values until they are divided by those of the weights.
    fn divide(&mut self, v_dim: usize) {
        for (results, total) in self.results.chunks_exact_mut(v_dim).zip(&self.totals) {
            results.iter_mut().for_each(|r| *r /= total.sum);
        }
    }
}
