//! Decoders with experts in place of the MLP, in all layers or all but the first ones.

pub(crate) mod deepseek2;
pub(crate) mod glm4moe;
pub(crate) mod gpt_oss;
pub(crate) mod maple;
pub(crate) mod qwen3moe;
