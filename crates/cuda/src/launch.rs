//! Compiled graphs, and how their steps are launched.

pub(crate) mod fused_step;
mod phase_launches;
pub(crate) mod program;

pub(crate) use program::{Compiled, Kv, Underway, scratch_bytes};
