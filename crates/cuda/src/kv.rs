//! The KV cache on the device.

use tern_graph::KvSpec;

use crate::driver::Memory;
use crate::launch::KvScales;
use crate::shared::KvCell;

/// Pages of keys and values.
pub(crate) struct Kv {
    pub(crate) spec: KvSpec,
    pub(crate) cells: KvCell,
    /// One entry per layer.
    pub(crate) memory: Vec<KvMemory>,
}

impl Kv {
    /// The scales of the layer whose keys are at this address; nothing for halves.
    pub(crate) fn scales_of(&self, keys: u64) -> KvScales {
        let layer = self.memory.iter().find(|m| m.keys.pointer() == keys);
        let scales = layer.and_then(|m| m.scales.as_ref());
        scales.map_or_else(KvScales::default, |[keys, values]| KvScales {
            keys: keys.pointer(),
            values: values.pointer(),
        })
    }
}

/// Keys and values of one layer: `[page][kv_head][page_len][in_cells(dim)]` halves, or bytes with scales.
pub(crate) struct KvMemory {
    pub(crate) keys: Memory,
    pub(crate) values: Memory,
    /// The scales of keys and values that are bytes: `[page][kv_head][page_len]` floats.
    pub(crate) scales: Option<[Memory; 2]>,
}
