//! Sampling on the device.

mod args;
mod launch;

pub(crate) use launch::{Sampler, is_plain};
