//! From a graph to the phases of a step: ops fused by pattern, values that pass between thread blocks without a grid
//! barrier, and the arguments of each phase.

pub(crate) mod fuse;
pub(crate) mod linear_shape;
mod lowering;
mod tagged_values;

pub(crate) use lowering::{AttentionShape, Best, Lowering, Scratch, number};
pub(crate) use tagged_values::Exchange;
