//! From a graph to the phases of a step: ops fused by pattern, values passed between thread blocks without a
//! grid barrier, and the arguments of each phase.

mod attention_shape;
mod batch_phases;
mod fuse;
mod fused;
mod host_phases;
mod kernel_config;
mod linear_shape;
mod lowering;
mod passed_halves;
mod patterns;
mod recurrent;
#[cfg(test)]
mod snapshots;
mod step_joins;
mod step_phases;
mod tagged_values;
#[cfg(test)]
mod test_graphs;
#[cfg(test)]
mod test_lowering;
mod transforms;

pub(crate) use attention_shape::AttentionShape;
pub(crate) use batch_phases::{BatchPhase, BatchSources, PassedMemory};
pub(crate) use fuse::fuse;
pub(crate) use fused::{Fused, work};
pub(crate) use host_phases::{HostOp, HostStep, without_host};
pub(crate) use kernel_config::{KernelConfig, intern};
pub(crate) use linear_shape::{LinearShape, PartShape, linear_defines};
pub(crate) use lowering::{Addresses, ArgmaxScratch, AttentionScratch, KvAddresses, Lowering, TaggedMemory};
pub(crate) use passed_halves::{
    NORMED_FACTOR, PASSED_FACTOR, order, passed_as_halves, passed_factor, passes_before_norm,
};
pub(crate) use step_phases::StepPhases;
pub(crate) use tagged_values::TaggedValues;
#[cfg(test)]
pub(crate) use test_graphs::{ExpertSizes, expert_decoder_of, rotated_hybrid};
#[cfg(test)]
pub(crate) use test_lowering::{Lowered, Strategy, lower};
