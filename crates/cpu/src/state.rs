//! State slots of recurrent layers: one run of floats per layer and slot.

use tern_graph::StateSpec;

use crate::memory::lines::Refused;
use crate::memory::shared::Shared;

/// The state of all layers.
pub(crate) struct State {
    pub(crate) spec: StateSpec,
    /// `[slots, floats]` per layer.
    pub(crate) layers: Vec<Shared<f32>>,
}

impl State {
    /// Slots whose bytes fit a `usize`.
    pub(crate) fn new(spec: &StateSpec) -> Result<State, Refused> {
        let layers = spec.layers.iter().map(|layer| Shared::new(layer.floats * spec.slots));
        Ok(State { spec: spec.clone(), layers: layers.collect::<Result<_, _>>()? })
    }
}
