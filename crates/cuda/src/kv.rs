//! The KV cache on the device.

use tern_graph::KvLayer;

use crate::driver::Memory;

/// Pages of keys and values.
pub(crate) struct Kv {
    pub(crate) layers: Vec<KvLayer>,
    pub(crate) pages: usize,
    pub(crate) page_len: usize,
    /// One entry per layer.
    pub(crate) memory: Vec<KvMemory>,
}

/// Keys and values of one layer: `[page][kv_head][page_len][dim]` halves.
pub(crate) struct KvMemory {
    pub(crate) keys: Memory,
    pub(crate) values: Memory,
}
