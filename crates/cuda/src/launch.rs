//! Compiled graphs, and how their steps are launched.

mod fused_memory;
mod fused_step;
mod in_flight;
mod inputs;
mod phase_launches;
mod program;
mod program_memory;
mod strategy;

pub(crate) use in_flight::InFlight;
pub(crate) use program::Compiled;
pub(crate) use program_memory::scratch_bytes;
pub(crate) use strategy::StepSize;

#[cfg(test)]
pub(crate) use fused_memory::{FusedMemory, Ring, RopeTable};
