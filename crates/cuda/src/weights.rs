//! Weights on the device.

mod layout;
mod packing;
mod record;
mod weight;

pub(crate) use layout::Layout;
pub(crate) use weight::{FEWEST_PACKED_ROWS, Weight, WeightRef};
