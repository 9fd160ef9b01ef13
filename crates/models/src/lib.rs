//! Architectures: what a checkpoint's metadata and tensor names mean as a [`Graph`](tern_graph::Graph).
//!
//! One file per architecture, one line in [`ALL`]. A model never sees a device.

mod adapters;
mod arch;
mod architectures;
mod build;
mod config;
mod error;
mod layers;
mod model;
mod prism;
mod router_logits;
mod separate_experts;
mod synthetic;
mod tensor;
mod towers;

pub use adapters::NamedAdapter;
pub use arch::{Arch, Number, Synthetic};
pub use architectures::ALL;
pub use build::{Build, Source};
pub use config::Config;
pub use error::ModelError;
pub use layers::{VectorKind, Vectors};
pub use model::{Model, Variant};
pub use router_logits::{Router, RouterLogits};
pub use synthetic::{SHAPES, Shape, ShapeExperts, Synth, plain_tokenizer};
pub use towers::{ImagePrompt, Join, Layout, Positions, TOWERS, Tower, TowerKind};
