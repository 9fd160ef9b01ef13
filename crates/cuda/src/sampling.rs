//! Sampling on the device.

mod args;
mod launch;

pub(crate) use launch::{Chooser, is_plain};
