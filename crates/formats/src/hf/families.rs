//! Every architecture that folders may have, by the names in their `config.json`.

mod dense;
mod encoder_parts;
mod encoders;
mod experts;
mod gemma;
mod jina;
mod latent;
mod local;
mod mamba;
mod nomic;
mod recurrent;

pub(crate) use self::dense::{
    ERNIE, GLM4, GRANITE, HUNYUAN, LLAMA, OLMO2, OLMO3, PHI3, QWEN2, QWEN3, SEED_OSS, SMOLLM3,
};
pub(crate) use self::experts::{MIXTRAL, QWEN3MOE};
pub(crate) use self::gemma::{GEMMA2, GEMMA3};
use super::config::Config;
use super::family::Family;
use crate::FormatError;

/// Every family.
pub(crate) static ALL: &[&Family] = &[
    &dense::LLAMA,
    &dense::QWEN2,
    &dense::QWEN2VL,
    &dense::QWEN3,
    &gemma::GEMMA3,
    &gemma::GEMMA4,
    &dense::PHI3,
    &gemma::GEMMA2,
    &dense::OLMO2,
    &dense::OLMO3,
    &dense::EXAONE4,
    &dense::GLM4,
    &dense::SEED_OSS,
    &dense::HUNYUAN,
    &dense::ERNIE,
    &dense::SMOLLM3,
    &dense::GRANITE,
    &dense::QWEN3VL,
    &dense::MISTRAL3,
    &dense::BITNET,
    &experts::MIXTRAL,
    &experts::QWEN3MOE,
    &experts::QWEN3VL_MOE,
    &experts::GRANITE_MOE,
    &experts::GLM4_MOE,
    &experts::GPT_OSS,
    &experts::MAPLE,
    &local::COHERE,
    &local::COHERE2,
    &local::AFMOE,
    &local::GRANITE_SWA,
    &local::GRANITE_MOE_SWA,
    &local::MUSE_GLIMMER,
    &local::MIMO2,
    &local::FLINT,
    &dense::JAIS2,
    &experts::SOLAR_OPEN,
    &dense::ARCEE,
    &dense::STARCODER2,
    &dense::STABLELM,
    &experts::OLMOE,
    &experts::MINIMAX_M2,
    &experts::HUNYUAN_MOE,
    &experts::ERNIE_MOE,
    &experts::EXAONE_MOE,
    &experts::HY_V3,
    &experts::MELLUM,
    &latent::DEEPSEEK2,
    &latent::DEEPSEEK3,
    &latent::MISTRAL4,
    &recurrent::QWEN35,
    &recurrent::QWEN35_MOE,
    &recurrent::QWEN3_NEXT,
    &recurrent::LFM2,
    &recurrent::LFM2_MOE,
    &mamba::MAMBA2,
    &mamba::GRANITE_HYBRID,
    &mamba::FALCON_H1,
    &mamba::NEMOTRON_H,
    &encoders::BERT,
    &encoders::XLM_ROBERTA,
    &encoders::DISTILBERT,
    &nomic::NOMIC_BERT,
    &jina::JINA_BERT,
    &jina::JINA_V3,
    &encoders::MODERN_BERT,
    &encoders::EUROBERT,
    &encoders::GEMMA_EMBEDDING,
    &encoders::LLAMA_EMBED,
];

/// The family of a name in `architectures`.
pub(crate) fn find(name: &str) -> Option<&'static Family> {
    ALL.iter().copied().find(|family| family.names.contains(&name))
}

/// Models of several parts whose language models are of other architectures.
static WRAPPERS: &[&str] = &[
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
];

/// Language models by the `model_type` of their configuration.
static LANGUAGE_MODELS: &[(&str, &str)] = &[
    ("llama", "LlamaForCausalLM"),
    ("lfm2", "Lfm2ForCausalLM"),
    ("lfm2_moe", "Lfm2MoeForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
];

/// The name of the architecture of a model's language model.
pub(crate) fn language_model<'a>(name: &'a str, config: &Config) -> Result<&'a str, FormatError> {
    let kind = config.optional_str("model_type")?.unwrap_or_default();
    if !WRAPPERS.contains(&name) {
        let is_mistral4 = name == "Mistral3ForConditionalGeneration" && kind == "mistral4";
        return Ok(if is_mistral4 { "Mistral4ForCausalLM" } else { name });
    }
    let found = LANGUAGE_MODELS.iter().find(|(of, _)| *of == kind).map(|(_, name)| *name);
    let known = || LANGUAGE_MODELS.iter().map(|(kind, _)| *kind).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| config.wrong("model_type", &format!("the type of a language model: {}", known())))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: Vec<&str> = ALL.iter().flat_map(|family| family.names).copied().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(find("LlamaForCausalLM").is_some_and(|family| family.arch == "llama"));
        assert!(find("NoSuchModel").is_none());
    }

    #[test]
    fn the_documentation_lists_every_name() {
        let text = include_str!("../../../../docs/models.md");
        let (_, table) = text.split_once("## Folders of safetensors").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let words: BTreeSet<&str> = table.split([' ', ',', ';', '|', '\n']).collect();
        for name in ALL.iter().flat_map(|family| family.names).chain(WRAPPERS) {
            assert!(words.contains(name), "{name} is not in docs/models.md");
        }
    }
}
