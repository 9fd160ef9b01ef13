//! The architectures, one file each, by kind of their layers, and the list of all of them.

pub(crate) mod dense;
pub(crate) mod encoders;
pub(crate) mod experts;
pub(crate) mod recurrent;

use crate::Arch;

/// Every architecture that Tern runs.
pub static ALL: &[&Arch] = &[
    &dense::llama::LLAMA,
    &dense::qwen2::QWEN2,
    &dense::qwen2vl::QWEN2VL,
    &dense::qwen3::QWEN3,
    &dense::gemma3::GEMMA3,
    &dense::gemma4::GEMMA4,
    &dense::phi3::PHI3,
    &dense::gemma2::GEMMA2,
    &dense::olmo2::OLMO2,
    &dense::exaone4::EXAONE4,
    &dense::glm4::GLM4,
    &dense::seed_oss::SEED_OSS,
    &dense::hunyuan::HUNYUAN,
    &dense::ernie::ERNIE,
    &dense::smollm3::SMOLLM3,
    &dense::granite::GRANITE,
    &dense::qwen3vl::QWEN3VL,
    &dense::qwen3vl::QWEN3VL_MOE,
    &experts::qwen3moe::QWEN3MOE,
    &dense::granite::GRANITE_MOE,
    &experts::glm4moe::GLM4_MOE,
    &experts::gpt_oss::GPT_OSS,
    &experts::maple::MAPLE,
    &dense::mistral3::MISTRAL3,
    &dense::bitnet::BITNET,
    &dense::bitnet::BITNET_B158,
    &experts::deepseek2::DEEPSEEK2,
    &recurrent::qwen35::QWEN35,
    &recurrent::qwen35::QWEN35_MOE,
    &recurrent::qwen3next::QWEN3_NEXT,
    &recurrent::lfm2::LFM2,
    &recurrent::lfm2::LFM2_MOE,
    &recurrent::mamba::MAMBA2,
    &recurrent::granite_hybrid::GRANITE_HYBRID,
    &recurrent::falcon_h1::FALCON_H1,
    &recurrent::nemotron_h::NEMOTRON_H,
    &recurrent::nemotron_h::NEMOTRON_H_MOE,
    &encoders::bert::BERT,
    &encoders::bert::NOMIC_BERT,
    &encoders::bert::NOMIC_BERT_MOE,
    &encoders::bert::JINA_BERT_V2,
    &encoders::bert::JINA_BERT_V3,
    &encoders::modern_bert::MODERN_BERT,
    &encoders::gemma_embedding::GEMMA_EMBEDDING,
    &encoders::eurobert::EUROBERT,
    &encoders::eurobert::LLAMA_EMBED,
];
