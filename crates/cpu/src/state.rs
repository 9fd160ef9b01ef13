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
    /// Appends the bytes of a slot, of all layers.
    ///
    /// # Safety
    /// No step is running.
    pub(crate) unsafe fn read_slot(&self, slot: u32, to: &mut Vec<u8>) {
        for (shared, layer) in self.layers.iter().zip(&self.spec.layers) {
            let first = slot as usize * layer.floats;
            // SAFETY: the contract of this function.
            to.extend_from_slice(unsafe { shared.bytes(first..first + layer.floats) });
        }
    }

    /// Overwrites a slot by as many bytes as it has, which were read.
    ///
    /// # Safety
    /// No step is running.
    pub(crate) unsafe fn write_slot(&self, slot: u32, mut bytes: &[u8]) {
        for (shared, layer) in self.layers.iter().zip(&self.spec.layers) {
            let first = slot as usize * layer.floats;
            let (own, rest) = bytes.split_at(layer.floats * size_of::<f32>());
            // SAFETY: the contract of this function.
            unsafe { shared.set_bytes(first..first + layer.floats, own) };
            bytes = rest;
        }
    }
}
