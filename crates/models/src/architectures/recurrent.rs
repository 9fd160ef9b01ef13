//! Models in which all or some layers have a state of a fixed size, a delta rule, Mamba-2 or a convolution,
//! instead of attention or beside it.

pub(crate) mod falcon_h1;
pub(crate) mod granite_hybrid;
pub(crate) mod lfm2;
pub(crate) mod mamba;
pub(crate) mod nemotron_h;
pub(crate) mod qwen35;
pub(crate) mod qwen3next;
