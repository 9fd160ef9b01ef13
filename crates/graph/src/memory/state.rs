//! The state of recurrent layers: a fixed number of floats per sequence, kept in slots
//! that steps read and write.
//!
//! A step may read one slot and write another, so that a slot that is kept for later is never written again.

use crate::{BackendError, Graph, Slice};

/// What one recurrent op keeps per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLayer {
    /// Floats per slot.
    pub floats: usize,
}

/// State to reserve: slots of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateSpec {
    /// The graph's state layers, in order.
    pub layers: Vec<StateLayer>,
    /// Number of slots.
    pub slots: usize,
}

/// The slots of a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSlots {
    /// Holds the state before the slice's first token; `None` is zeros, the state at position 0.
    pub read: Option<u32>,
    /// Gets the state after its last token; the slot that is read is updated in place.
    pub write: u32,
}

impl StateSlots {
    /// One slot, for a slice that begins at this position.
    pub fn in_place(slot: u32, position: usize) -> StateSlots {
        StateSlots { read: (position > 0).then_some(slot), write: slot }
    }
}

impl StateSpec {
    /// Whether a graph can use it.
    pub fn fits(&self, graph: &Graph) -> bool {
        self.layers == graph.states
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.floats * size_of::<f32>()).sum()
    }

    /// Bytes of all slots; `None` if they exceed 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        bytes_per_slot(&self.layers)?.checked_mul(self.slots as u64)
    }
}

impl Graph {
    /// Bytes of state per sequence: one slot of all state layers.
    pub fn state_bytes(&self) -> u64 {
        bytes_per_slot(&self.states).unwrap_or(u64::MAX)
    }
}

fn bytes_per_slot(layers: &[StateLayer]) -> Option<u64> {
    layers.iter().try_fold(0u64, |sum, layer| sum.checked_add((layer.floats as u64).checked_mul(4)?))
}

/// Refuses slices whose slots are missing, out of range or in each other's way; `slots` is `None` if the
/// graph has no state.
pub(crate) fn check_slots(slices: &[Slice], slots: Option<usize>) -> Result<(), BackendError> {
    let fail = |text: String| Err(BackendError::Invalid(text));
    let Some(slots) = slots else { return Ok(()) };
    let mut writer = vec![None; slots]; // [slot]: the slice that writes it
    for (i, slice) in slices.iter().enumerate() {
        let Some(state) = slice.state else {
            return fail(format!("slice {i} has no state slots, and the graph has recurrent layers"));
        };
        if let Some(slot) = state.read.into_iter().chain([state.write]).find(|s| *s as usize >= slots) {
            return fail(format!("state slot {slot} is outside the {slots} reserved"));
        }
        if state.read.is_none() && slice.position > 0 {
            return fail(format!("slice {i} begins at position {} and reads no state", slice.position));
        }
        if let Some(other) = writer[state.write as usize].replace(i) {
            return fail(format!("slices {other} and {i} write state slot {}", state.write));
        }
    }
    for (i, slice) in slices.iter().enumerate() {
        let Some(slot) = slice.state.and_then(|state| state.read) else { continue };
        if let Some(other) = writer[slot as usize].filter(|other| *other != i) {
            return fail(format!("slice {i} reads state slot {slot}, which slice {other} writes"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(slots: &[(usize, Option<StateSlots>)]) -> String {
        let slices: Vec<Slice> = slots
            .iter()
            .map(|(position, state)| Slice { state: *state, ..Slice::new(1, *position, vec![]) })
            .collect();
        check_slots(&slices, Some(3)).map_or_else(|e| e.to_string(), |()| "fits".into())
    }

    #[test]
    fn slots_that_do_not_fit_are_refused() {
        let slots = |read: Option<u32>, write: u32| Some(StateSlots { read, write });
        assert_eq!(message(&[(0, slots(None, 2)), (4, slots(Some(1), 1)), (9, slots(Some(0), 0))]), "fits");
        assert_eq!(message(&[(4, slots(Some(2), 0)), (4, slots(Some(2), 1))]), "fits");
        assert_eq!(message(&[(4, slots(Some(1), 3))]), "state slot 3 is outside the 3 reserved");
        assert_eq!(message(&[(4, slots(Some(7), 1))]), "state slot 7 is outside the 3 reserved");
        assert_eq!(message(&[(4, slots(None, 1))]), "slice 0 begins at position 4 and reads no state");
        assert_eq!(message(&[(0, None)]), "slice 0 has no state slots, and the graph has recurrent layers");
        assert_eq!(message(&[(0, slots(None, 1)), (0, slots(None, 1))]), "slices 0 and 1 write state slot 1");
        assert_eq!(
            message(&[(4, slots(Some(1), 0)), (4, slots(Some(1), 1))]),
            "slice 0 reads state slot 1, which slice 1 writes"
        );
        assert_eq!(check_slots(&[Slice::new(1, 4, vec![])], None), Ok(()));
    }

    #[test]
    fn bytes_are_those_of_all_layers_and_slots() {
        let layers = vec![StateLayer { floats: 10 }, StateLayer { floats: 6 }];
        let mut graph = Graph::new();
        graph.states = layers.clone();
        assert_eq!(graph.state_bytes(), 64);
        let spec = StateSpec { layers, slots: 3 };
        assert_eq!((spec.bytes(), spec.fits(&graph)), (Some(192), true));
        assert_eq!(StateSpec { slots: usize::MAX, ..spec }.bytes(), None);
    }
}
