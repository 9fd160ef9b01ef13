//! Architectures: what a checkpoint's metadata and tensor names mean as a [`Graph`](tern_graph::Graph).
//!
//! One file per architecture, one line in [`ALL`]. A model never sees a device.

mod arch;
mod blocks;
mod build;
mod config;
mod error;
mod gemma3;
mod llama;
mod model;
mod phi3;
mod qwen2;
mod qwen3;
mod rope;
mod shapes;
mod synth;
mod tensor;

pub use arch::{Arch, Synthetic};
pub use build::{Build, Source};
pub use config::Config;
pub use error::ModelError;
pub use model::Model;
pub use shapes::{SHAPES, Shape};
pub use synth::{Synth, plain_tokenizer};

/// Every architecture that Tern runs.
pub static ALL: &[&Arch] = &[&llama::LLAMA, &qwen2::QWEN2, &qwen3::QWEN3, &gemma3::GEMMA3, &phi3::PHI3];
