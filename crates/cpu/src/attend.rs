//! Attention over pages: one query head at a time, keys and values read where they lie.

use tern_graph::{Attention, Slice};

use crate::kernels::Kernels;
use crate::kv::Kv;

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
        key: &[f32],
        value: &[f32],
    ) {
        let (layer, a) = (&self.kv.layers[self.layer], self.args);
        let (page, slot) = (slice.pages[position / self.kv.page_len], position % self.kv.page_len);
        let at = self.kv.head_slot(page, a.kv_heads, head) + slot;
        // SAFETY: the caller's promise.
        unsafe {
            (self.kernels.store_f16)(key, layer.keys.get_mut(at * a.head_dim..(at + 1) * a.head_dim));
            (self.kernels.store_f16)(value, layer.values.get_mut(at * a.v_dim..(at + 1) * a.v_dim));
        }
    }

    /// One query head at one position. `scores` is room to work in, as long as the context.
    ///
    /// # Safety
    /// No thread writes this layer's pages before the next barrier.
    pub(crate) unsafe fn attend(
        &self,
        slice: &Slice,
        position: usize,
        (head, query): (usize, &[f32]),
        scores: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let (layer, a, page_len) = (&self.kv.layers[self.layer], self.args, self.kv.page_len);
        let kv_head = head / (a.heads / a.kv_heads);
        let first = a.window.map_or(0, |w| (position + 1).saturating_sub(w));
        // the part of each page that is visible: (its index from `first`, first slot, slots)
        let runs = || {
            (first / page_len..=position / page_len).map(|p| {
                let (from, to) = ((p * page_len).max(first), ((p + 1) * page_len).min(position + 1));
                let slot = self.kv.head_slot(slice.pages[p], a.kv_heads, kv_head) + from % page_len;
                (from - first, slot, to - from)
            })
        };
        scores.clear();
        for (_, slot, len) in runs() {
            // SAFETY: the caller's promise.
            let keys = unsafe { layer.keys.get(slot * a.head_dim..(slot + len) * a.head_dim) };
            scores.extend(keys.chunks_exact(a.head_dim).map(|k| (self.kernels.dot_f16)(query, k) * a.scale));
        }
        if let Some(cap) = a.softcap {
            scores.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
        }
        let sum = (self.kernels.softmax)(scores);
        out.fill(0.0);
        for (start, slot, len) in runs() {
            // SAFETY: the caller's promise.
            let values = unsafe { layer.values.get(slot * a.v_dim..(slot + len) * a.v_dim) };
            for (w, v) in scores[start..start + len].iter().zip(values.chunks_exact(a.v_dim)) {
                (self.kernels.add_scaled_f16)(*w, v, out);
            }
        }
        out.iter_mut().for_each(|o| *o /= sum);
    }
}
