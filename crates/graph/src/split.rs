//! A model over several devices by layers: where a graph can be cut, its parts, and the backend that consists
//! of a device per part.

mod borders;
mod layer_group;
mod layer_parts;

pub use layer_group::LayerGroup;
pub use layer_parts::LayerPart;
