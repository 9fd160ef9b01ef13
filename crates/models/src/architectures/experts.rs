//! Decoders with experts in place of the MLP, in all layers or all but the first ones.

pub(crate) mod afmoe;
pub(crate) mod deepseek2;
pub(crate) mod ernie_moe;
pub(crate) mod exaone_moe;
pub(crate) mod flint;
pub(crate) mod glm4moe;
pub(crate) mod gpt_oss;
pub(crate) mod hunyuan3;
pub(crate) mod hunyuan_moe;
pub(crate) mod maple;
pub(crate) mod mellum;
pub(crate) mod mimo2;
pub(crate) mod minimax_m2;
pub(crate) mod olmoe;
pub(crate) mod qwen3moe;
