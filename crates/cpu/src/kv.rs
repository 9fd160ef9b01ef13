//! KV pages: a page holds `page_len` tokens of every layer, head after head, as halves or as bytes.

use std::ops::Range;

use tern_graph::{KvCells, KvLayer};

use crate::kernels::Kernels;
use crate::shared::Shared;

/// Keys and values of all layers.
pub(crate) struct Kv {
    pub(crate) pages: usize,
    pub(crate) page_len: usize,
    pub(crate) layers: Vec<LayerKv>,
}

/// One layer: keys `[page][kv_head][dim][slot]`, so that a vector takes a column of many of them, and values
/// `[page][kv_head][slot][dim]`.
pub(crate) struct LayerKv {
    pub(crate) shape: KvLayer,
    pub(crate) keys: Cells,
    pub(crate) values: Cells,
}

/// What is kept of all tokens.
pub(crate) enum Cells {
    /// As halves.
    Halves(Shared<u16>),
    /// As bytes, and what a one is worth in each slot: `[page][kv_head][slot]`.
    Bytes(Shared<i8>, Shared<f32>),
}

impl Kv {
    pub(crate) fn new(layers: &[KvLayer], pages: usize, page_len: usize) -> Kv {
        let layer = |shape: &KvLayer| {
            let slots = pages * page_len * shape.kv_heads;
            let cells = |dim: usize| match shape.cells {
                KvCells::F16 => Cells::Halves(Shared::new(slots * dim)),
                KvCells::Int8 => Cells::Bytes(Shared::new(slots * dim), Shared::new(slots)),
            };
            LayerKv { shape: *shape, keys: cells(shape.k_dim), values: cells(shape.v_dim) }
        };
        Kv { pages, page_len, layers: layers.iter().map(layer).collect() }
    }

    /// Bytes of such pages.
    pub(crate) fn bytes(layers: &[KvLayer], pages: usize, page_len: usize) -> Option<u64> {
        let token: usize = layers.iter().map(KvLayer::bytes_per_token).sum();
        (token as u64).checked_mul(pages as u64)?.checked_mul(page_len as u64)
    }

    /// Index of a head's first slot in a page, in units of `dim`.
    pub(crate) fn head_slot(&self, page: u32, kv_heads: usize, head: usize) -> usize {
        (page as usize * kv_heads + head) * self.page_len
    }
}

impl Cells {
    /// Keeps a slot's values: the first at `first`, the others `stride` apart.
    ///
    /// # Safety
    /// No other thread touches the slot before the next barrier.
    pub(crate) unsafe fn store(
        &self,
        kernels: &Kernels,
        x: &[f32],
        slot: usize,
        (first, stride): (usize, usize),
        room: &mut Vec<u16>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Cells::Halves(halves) if stride == 1 => {
                    (kernels.store_f16)(x, halves.get_mut(first..first + x.len()))
                }
                Cells::Halves(halves) => {
                    room.resize(x.len(), 0);
                    (kernels.store_f16)(x, room);
                    room.iter().enumerate().for_each(|(i, half)| halves.set(first + i * stride, *half));
                }
                Cells::Bytes(bytes, scales) => {
                    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let by = if most > 0.0 { 127.0 / most } else { 0.0 };
                    for (i, x) in x.iter().enumerate() {
                        bytes.set(first + i * stride, (x * by).round() as i8); // a NaN becomes 0
                    }
                    scales.set(slot, most / 127.0);
                }
            }
        }
    }

    /// Cells as floats, not yet times their slots' scales.
    ///
    /// # Safety
    /// No thread writes these cells before the next barrier.
    pub(crate) unsafe fn load(&self, kernels: &Kernels, from: usize, out: &mut [f32]) {
        let range = from..from + out.len();
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Cells::Halves(halves) => (kernels.load_f16)(halves.get(range), out),
                Cells::Bytes(bytes, _) => (kernels.load_i8)(bytes.get(range), out),
            }
        }
    }

    /// What cells of some slots are to be multiplied with, if with anything.
    ///
    /// # Safety
    /// No thread writes these slots before the next barrier.
    pub(crate) unsafe fn scales(&self, slots: Range<usize>) -> Option<&[f32]> {
        match self {
            Cells::Halves(_) => None,
            // SAFETY: the caller's promise.
            Cells::Bytes(_, scales) => Some(unsafe { scales.get(slots) }),
        }
    }
}
