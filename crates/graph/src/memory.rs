//! What a device keeps of sequences between steps: KV pages, and the state of recurrent layers.

mod kv;
mod page_table;
mod place;
mod state;

pub use kv::{KvCells, KvLayer, KvSize, KvSpec, WindowLayers};
pub use page_table::PageTable;
pub use place::{CachePart, Place};
pub(crate) use state::check_slots;
pub use state::{StateLayer, StateSlots, StateSpec};
