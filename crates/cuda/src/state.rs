//! State slots of recurrent layers, and what a program has reserved.

use std::sync::Arc;

use tern_graph::StateSpec;

use crate::driver::Memory;
use crate::kv::Kv;

/// The state of all layers.
pub(crate) struct State {
    pub(crate) spec: StateSpec,
    /// `[slot][floats]` per layer.
    pub(crate) memory: Vec<Memory>,
}

/// What a program keeps of its sequences.
#[derive(Clone, Default)]
pub(crate) struct Reserved {
    /// `None` if there is no attention.
    pub(crate) kv: Option<Arc<Kv>>,
    /// `None` if there are no recurrent layers.
    pub(crate) state: Option<Arc<State>>,
}
