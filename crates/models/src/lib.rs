//! Architectures: what a checkpoint's metadata and tensor names mean as a [`Graph`](tern_graph::Graph).
//!
//! One file an architecture, one line in [`ALL`]. A model never sees a device.

mod blocks;
mod build;
mod config;
mod gemma3;
mod llama;
mod model;
mod phi3;
mod qwen2;
mod qwen3;
mod rope;
mod shapes;
mod synth;

pub use build::{Build, Source};
pub use config::Config;
pub use model::{Model, ModelError};
pub use shapes::{SHAPES, Shape};
pub use synth::{Synth, plain_tokenizer};

/// One architecture: the name files carry, and how its graph is built.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`.
    pub name: &'static str,
    /// Appends the whole model to the builder's graph.
    pub build: fn(&mut Build<'_>) -> Result<(), ModelError>,
}

/// Every architecture Tern runs.
pub static ALL: &[&Arch] = &[&llama::LLAMA, &qwen2::QWEN2, &qwen3::QWEN3, &gemma3::GEMMA3, &phi3::PHI3];
