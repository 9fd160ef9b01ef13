//! Compiled graphs, and how their steps are launched.

mod attention_plan;
mod experts;
mod fused_memory;
mod fused_step;
mod host_phases;
mod in_flight;
mod inputs;
mod linear_tiling;
mod paged_attention;
mod passing;
mod phase_launches;
mod program;
mod program_memory;
mod recurrent;
mod strategy;
mod tiled_linears;

pub(crate) use attention_plan::in_cells;
pub(crate) use in_flight::InFlight;
pub(crate) use paged_attention::KvScales;
pub(crate) use program::Compiled;
pub(crate) use program_memory::scratch_bytes;
pub(crate) use strategy::StepSize;

pub(crate) use linear_tiling::Limits;

pub(crate) use fused_memory::{FusedMemory, Ring, RopeTable};
#[cfg(test)]
pub(crate) use fused_step::{FusedSource, FusedStepPlan};
pub(crate) use paged_attention::KernelShape;
pub(crate) use recurrent::recurrent_source;
pub(crate) use tiled_linears::{KernelKey, linear_source};
