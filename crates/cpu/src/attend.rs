//! Attention over pages: the heads of a group and some tokens share the keys and values they read.
//!
//! Each result is summed in the order of positions by itself, whatever stands beside it.

use std::ops::Range;

use tern_graph::{Attention, Slice};

use crate::kernels::Kernels;
use crate::kv::Kv;
use crate::products::Product;

/// One layer's attention in a step.
pub(crate) struct Attend<'a> {
    pub(crate) kernels: &'a Kernels,
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
        room: &mut Vec<u16>,
    ) {
        let (layer, a) = (&self.kv.layers[self.layer], self.args);
        let (page, slot) = (slice.pages[position / self.kv.page_len], position % self.kv.page_len);
        let at = self.kv.head_slot(page, a.kv_heads, head) + slot;
        let (page_len, column) = (self.kv.page_len, (at - slot) * a.head_dim + slot);
        // SAFETY: the caller's promise.
        unsafe {
            layer.keys.store(self.kernels, key, at, (column, page_len), room);
            layer.values.store(self.kernels, value, at, (at * a.v_dim, 1), room);
        }
    }

    /// Some heads of one group at some consecutive positions of a slice: all results stand in `room.results`
    /// afterwards, `[tokens, heads, v_dim]`.
    ///
    /// # Safety
    /// No thread writes this layer's pages before the next barrier.
    pub(crate) unsafe fn attend<'q>(
        &self,
        block: &Block<'_>,
        query: impl Fn(usize, usize) -> &'q [f32],
        room: &mut AttendRoom,
    ) {
        let (layer, a, page_len) = (&self.kv.layers[self.layer], self.args, self.kv.page_len);
        let (heads, queries) = (block.heads.len(), block.tokens * block.heads.len());
        let kv_head = block.heads.start / (a.heads / a.kv_heads);
        let end = block.position + block.tokens;
        let pages = self.first(block.position) / page_len..end.div_ceil(page_len);
        let base = pages.start * page_len;
        let stride = pages.len() * page_len;
        room.fill(queries, (a.head_dim, a.v_dim), page_len, stride);

        for (i, scaled) in room.queries.chunks_exact_mut(a.head_dim).enumerate() {
            let query = query(i / heads, block.heads.start + i % heads);
            scaled.iter_mut().zip(query).for_each(|(s, q)| *s = q * a.scale);
        }
        for p in pages.clone() {
            let at = self.kv.head_slot(block.slice.pages[p], a.kv_heads, kv_head);
            let cols = page_len.min(end - p * page_len);
            // SAFETY: the caller's promise.
            unsafe { layer.keys.load(self.kernels, at * a.head_dim, &mut room.keys) };
            (self.kernels.product)(Product {
                rows: queries,
                inner: a.head_dim,
                cols,
                a: &room.queries,
                a_stride: a.head_dim,
                b: &room.keys,
                b_stride: page_len,
                c: &mut room.scores[p * page_len - base..],
                c_stride: stride,
            });
            // SAFETY: the caller's promise.
            let scales = unsafe { layer.keys.scales(at..at + cols) };
            room.scale(scales, p * page_len - base, stride);
        }
        for (i, scores) in room.scores.chunks_exact_mut(stride).enumerate() {
            let position = block.position + i / heads;
            let seen = &mut scores[self.first(position) - base..position + 1 - base];
            if let Some(cap) = a.softcap {
                seen.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
            }
            room.sums[i] = (self.kernels.softmax)(seen);
        }
        for p in pages {
            let at = self.kv.head_slot(block.slice.pages[p], a.kv_heads, kv_head);
            // SAFETY: the caller's promise.
            let scales = unsafe {
                layer.values.load(self.kernels, at * a.v_dim, &mut room.values);
                layer.values.scales(at..at + page_len)
            };
            room.scale(scales, p * page_len - base, stride);
            // what each token sees of this page
            let part = |t: usize| {
                let position = block.position + t;
                let from = (p * page_len).max(self.first(position));
                from..((p + 1) * page_len).min(position + 1).max(from)
            };
            let mut t = 0;
            while t < block.tokens {
                // tokens that see the same part go together
                let seen = part(t);
                let same = (t..block.tokens).take_while(|&t| part(t) == seen).count();
                (self.kernels.product)(Product {
                    rows: same * heads,
                    inner: seen.len(),
                    cols: a.v_dim,
                    a: &room.scores[t * heads * stride + seen.start - base..],
                    a_stride: stride,
                    b: &room.values[seen.start % page_len * a.v_dim..],
                    b_stride: a.v_dim,
                    c: &mut room.results[t * heads * a.v_dim..],
                    c_stride: a.v_dim,
                });
                t += same;
            }
        }
        for (out, sum) in room.results.chunks_exact_mut(a.v_dim).zip(&room.sums) {
            out.iter_mut().for_each(|o| *o /= sum);
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
pub(crate) struct AttendRoom {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
    pub(crate) results: Vec<f32>,
}

impl AttendRoom {
    fn fill(&mut self, queries: usize, (head_dim, v_dim): (usize, usize), page_len: usize, stride: usize) {
        self.queries.resize(queries * head_dim, 0.0);
        self.keys.resize(page_len * head_dim, 0.0);
        self.values.resize(page_len * v_dim, 0.0);
        self.sums.resize(queries, 0.0);
        for (zeroed, len) in [(&mut self.scores, queries * stride), (&mut self.results, queries * v_dim)] {
            zeroed.clear();
            zeroed.resize(len, 0.0);
        }
    }

    /// What all queries have in some columns, times these where there are any.
    fn scale(&mut self, scales: Option<&[f32]>, first: usize, stride: usize) {
        let Some(scales) = scales else { return };
        for scores in self.scores.chunks_exact_mut(stride) {
            scores[first..].iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
        }
    }
}
