//! Decoders of attention and an MLP in every layer; files of a few of them have experts instead
//! of the MLP, or beside it.

pub(crate) mod arcee;
pub(crate) mod bitnet;
pub(crate) mod cohere;
pub(crate) mod ernie;
pub(crate) mod exaone4;
pub(crate) mod gemma2;
pub(crate) mod gemma3;
pub(crate) mod gemma4;
pub(crate) mod glm4;
pub(crate) mod granite;
pub(crate) mod hunyuan;
pub(crate) mod jais2;
pub(crate) mod llama;
pub(crate) mod mistral3;
pub(crate) mod muse_glimmer;
pub(crate) mod olmo2;
pub(crate) mod phi3;
pub(crate) mod qwen2;
pub(crate) mod qwen2vl;
pub(crate) mod qwen3;
pub(crate) mod qwen3vl;
pub(crate) mod seed_oss;
pub(crate) mod smollm3;
pub(crate) mod stablelm;
pub(crate) mod starcoder2;
