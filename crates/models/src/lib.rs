//! Architectures: what a checkpoint's metadata and tensor names mean as a [`Graph`](tern_graph::Graph).
//!
//! One file per architecture, one line in [`ALL`]. A model never sees a device.

mod adapters;
mod arch;
mod bert;
mod bitnet;
mod blocks;
mod build;
mod config;
mod deepseek2;
mod delta_net;
mod ernie;
mod error;
mod eurobert;
mod exaone4;
mod experts;
mod falcon_h1;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod hunyuan;
mod latent;
mod lfm2;
mod llama;
mod mamba;
mod maple;
mod mistral3;
mod model;
mod modern_bert;
mod nemotron_h;
mod olmo2;
mod phi3;
mod pooling;
mod prism;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod rope;
mod seed_oss;
mod separate_experts;
mod shapes;
mod smollm3;
mod synth;
mod tensor;

pub use adapters::NamedAdapter;
pub use arch::{Arch, Number, Synthetic};
pub use build::{Build, Source};
pub use config::Config;
pub use error::ModelError;
pub use model::Model;
pub use pooling::{VectorKind, VectorRows, Vectors};
pub use shapes::{SHAPES, Shape, ShapeExperts};
pub use synth::{Synth, plain_tokenizer};

/// Every architecture that Tern runs.
pub static ALL: &[&Arch] = &[
    &llama::LLAMA,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &gemma3::GEMMA3,
    &gemma4::GEMMA4,
    &phi3::PHI3,
    &gemma2::GEMMA2,
    &olmo2::OLMO2,
    &exaone4::EXAONE4,
    &glm4::GLM4,
    &seed_oss::SEED_OSS,
    &hunyuan::HUNYUAN,
    &ernie::ERNIE,
    &smollm3::SMOLLM3,
    &granite::GRANITE,
    &qwen3vl::QWEN3VL,
    &qwen3moe::QWEN3MOE,
    &granite::GRANITE_MOE,
    &glm4moe::GLM4_MOE,
    &gpt_oss::GPT_OSS,
    &maple::MAPLE,
    &mistral3::MISTRAL3,
    &bitnet::BITNET,
    &bitnet::BITNET_B158,
    &deepseek2::DEEPSEEK2,
    &qwen35::QWEN35,
    &qwen35::QWEN35_MOE,
    &qwen3next::QWEN3_NEXT,
    &lfm2::LFM2,
    &lfm2::LFM2_MOE,
    &mamba::MAMBA2,
    &granite_hybrid::GRANITE_HYBRID,
    &falcon_h1::FALCON_H1,
    &nemotron_h::NEMOTRON_H,
    &nemotron_h::NEMOTRON_H_MOE,
    &bert::BERT,
    &bert::NOMIC_BERT,
    &bert::NOMIC_BERT_MOE,
    &bert::JINA_BERT_V2,
    &bert::JINA_BERT_V3,
    &modern_bert::MODERN_BERT,
    &gemma_embedding::GEMMA_EMBEDDING,
    &eurobert::EUROBERT,
    &eurobert::LLAMA_EMBED,
];
