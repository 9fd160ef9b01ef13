//! KV pages in f16. A page holds `page_len` tokens of every layer, head after head.

use tern_graph::KvLayer;

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
    pub(crate) keys: Shared<u16>,
    pub(crate) values: Shared<u16>,
}

impl Kv {
    pub(crate) fn new(layers: &[KvLayer], pages: usize, page_len: usize) -> Kv {
        let layer = |shape: &KvLayer| {
            let heads = pages * page_len * shape.kv_heads;
            LayerKv {
                shape: *shape,
                keys: Shared::new(heads * shape.k_dim),
                values: Shared::new(heads * shape.v_dim),
            }
        };
        Kv { pages, page_len, layers: layers.iter().map(layer).collect() }
    }

    /// Bytes of such pages.
    pub(crate) fn bytes(layers: &[KvLayer], pages: usize, page_len: usize) -> Option<u64> {
        let token: usize = layers.iter().map(|l| l.values_per_token() * 2).sum();
        (token as u64).checked_mul(pages as u64)?.checked_mul(page_len as u64)
    }

    /// Index of a head's first slot in a page, in units of `dim`.
    pub(crate) fn head_slot(&self, page: u32, kv_heads: usize, head: usize) -> usize {
        (page as usize * kv_heads + head) * self.page_len
    }
}
