//! Ops of a device's graph that the host computes in the middle of a step.

use std::sync::{Arc, Mutex};

use crate::BackendError;

/// The rows that an op of the host reads, one per token.
#[derive(Clone, Copy, Debug)]
pub struct HostRows<'a> {
    /// Tokens of the step.
    pub tokens: usize,
    /// What the experts read. `[tokens, cols(x)]`
    pub x: &'a [f32],
    /// What experts are chosen from. `[tokens, experts]`
    pub logits: &'a [f32],
}

/// Computes values of [`crate::Op::HostExperts`] for a device that runs the rest of a step.
pub trait HostOps: Send {
    /// Writes the value of a piece, which has as many rows of the same width as `x`.
    fn compute(&mut self, piece: usize, rows: HostRows<'_>, out: &mut [f32]) -> Result<(), BackendError>;
}

/// What a device calls in its steps, and what compiles pieces for it.
pub type HostOpsHandle = Arc<Mutex<dyn HostOps>>;
