//! Steps in flight: their pinned host memory, and the event that marks their end.

use std::sync::Arc;

use tern_graph::{BackendError, StepOutput};

use crate::driver::{Device, Event, Pinned};

type Result<T> = std::result::Result<T, BackendError>;

/// A submitted step.
pub(crate) enum InFlight {
    /// Logits were requested, so it was waited for.
    Done(StepOutput),
    /// The device still computes it.
    Running(Running),
}

/// A step that the device computes.
pub(crate) struct Running {
    pub(super) buffers: StepBuffers,
    /// For each output: whether a token was requested.
    pub(super) sampled: Vec<bool>,
}

/// Host memory of one step: its inputs and the sampled token ids, and an event after its last copy.
pub(crate) struct StepBuffers {
    pub(super) inputs: Pinned,
    pub(super) sampled: Pinned,
    pub(super) done: Event,
}

impl StepBuffers {
    /// Buffers of these lengths in bytes.
    pub(super) fn new(device: &Arc<Device>, inputs: usize, sampled: usize) -> Result<StepBuffers> {
        let (inputs, sampled) = (Pinned::new(device, inputs)?, Pinned::new(device, sampled)?);
        Ok(StepBuffers { inputs, sampled, done: Event::new(device)? })
    }
}
