//! Weights on the device.

mod layout;
mod weight;

pub(crate) use layout::{CHUNK, Layout, TILE};
pub(crate) use weight::Weight;
