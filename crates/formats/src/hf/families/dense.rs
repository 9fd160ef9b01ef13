//! Decoders without experts.

use serde_json::Value as Json;

use super::super::family::Kind::{Float, OptionalBool, OptionalFloat, OptionalText};
use super::super::family::{Family, PAIRED_HEADS, key, rule};
use super::super::import::Import;
use crate::{FolderError, FormatError, Value};

pub(crate) static LLAMA: Family = Family {
    names: &["LlamaForCausalLM", "MistralForCausalLM", "LlamaModel", "MistralModel"],
    arch: "llama",
    keys: &[],
    tensors: &[&PAIRED_HEADS],
    prepare: |import| {
        let names = import.config.optional_strings("architectures")?.unwrap_or_default();
        let is_headless = names.first().is_some_and(|name| name.ends_with("Model"));
        if is_headless && import.config.optional_bool("is_causal")? == Some(false) {
            import.set_arch("llama-embed");
        }
        limit_context(import)
    },
};

pub(crate) static QWEN2: Family = Family {
    names: &["Qwen2ForCausalLM", "Qwen2Model"],
    arch: "qwen2",
    keys: &[],
    tensors: &[],
    prepare: limit_context,
};

pub(crate) static QWEN3: Family = Family {
    names: &["Qwen3ForCausalLM", "Qwen3Model"],
    arch: "qwen3",
    keys: &[],
    tensors: &[],
    prepare: limit_context,
};

pub(crate) static QWEN3VL: Family = Family {
    names: &["Qwen3VLForConditionalGeneration"],
    arch: "qwen3vl",
    keys: &[],
    tensors: &[],
    prepare: |import| {
        import.set_features()?;
        import.set_sections([24, 20, 20])
    },
};

pub(crate) static QWEN2VL: Family = Family {
    names: &["Qwen2_5_VLForConditionalGeneration"],
    arch: "qwen2vl",
    keys: &[],
    tensors: &[],
    prepare: |import| {
        import.set_sections([16, 24, 24])?;
        limit_context(import)
    },
};

pub(crate) static PHI3: Family = Family {
    names: &["Phi3ForCausalLM", "Phi4ForCausalLM"],
    arch: "phi3",
    keys: &[],
    tensors: &[&[rule("layers.self_attn.qkv_proj", "attn_qkv"), rule("layers.mlp.gate_up_proj", "ffn_up")]],
    prepare: limit_context,
};

/// Norms after each half of a layer, and none before.
static NORMS_AFTER: [super::super::family::Rule; 2] = [
    rule("layers.post_attention_layernorm", "post_attention_norm"),
    rule("layers.post_feedforward_layernorm", "post_ffw_norm"),
];

pub(crate) static OLMO2: Family = Family {
    names: &["Olmo2ForCausalLM"],
    arch: "olmo2",
    keys: &[],
    tensors: &[&NORMS_AFTER],
    prepare: |_| Ok(()),
};

pub(crate) static OLMO3: Family = Family {
    names: &["Olmo3ForCausalLM"],
    arch: "olmo2",
    keys: &[],
    tensors: &[&NORMS_AFTER],
    prepare: |import| import.set_window(4),
};

/// Layers of the one size with local layers.
const EXAONE_32B: u64 = 64;

pub(crate) static EXAONE4: Family = Family {
    names: &["Exaone4ForCausalLM"],
    arch: "exaone4",
    keys: &[],
    tensors: &[&NORMS_AFTER],
    prepare: |import| match import.config.optional_usize("sliding_window")? {
        None => Ok(()),
        Some(_) if import.layers()? == EXAONE_32B => import.set_window(4),
        Some(_) => Err(import.config.wrong("sliding_window", "null unless there are 64 layers")),
    },
};

pub(crate) static GLM4: Family = Family {
    names: &["Glm4ForCausalLM"],
    arch: "glm4",
    keys: &[],
    tensors: &[&[
        rule("layers.post_self_attn_layernorm", "post_attention_norm"),
        rule("layers.post_mlp_layernorm", "post_ffw_norm"),
        rule("layers.mlp.gate_up_proj", "ffn_up"),
    ]],
    prepare: |_| Ok(()),
};

pub(crate) static SEED_OSS: Family = Family {
    names: &["SeedOssForCausalLM"],
    arch: "seed_oss",
    keys: &[],
    tensors: &[&[rule("layers.post_attention_layernorm", "post_attention_norm")]],
    prepare: |_| Ok(()),
};

pub(crate) static HUNYUAN: Family = Family {
    names: &["HunYuanDenseV1ForCausalLM"],
    arch: "hunyuan-dense",
    keys: &[],
    tensors: &[&[
        rule("layers.self_attn.query_layernorm", "attn_q_norm"),
        rule("layers.self_attn.key_layernorm", "attn_k_norm"),
    ]],
    prepare: |_| Ok(()),
};

pub(crate) static ERNIE: Family = Family {
    names: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    arch: "ernie4_5",
    keys: &[],
    tensors: &[],
    prepare: |_| Ok(()),
};

pub(crate) static SMOLLM3: Family = Family {
    names: &["SmolLM3ForCausalLM"],
    arch: "smollm3",
    keys: &[],
    tensors: &[&PAIRED_HEADS],
    prepare: |import| {
        let listed = import.config.optional_usizes("no_rope_layers")?.unwrap_or_default();
        let differs = listed.iter().zip(1..).any(|(rotated, layer)| (*rotated == 0) != (layer % 4 == 0));
        if differs {
            return Err(import
                .config
                .wrong("no_rope_layers", "0 for every fourth layer and 1 for the others"));
        }
        limit_context(import)
    },
};

pub(crate) static GRANITE: Family = Family {
    names: &["GraniteForCausalLM"],
    arch: "granite",
    keys: &[GRANITE_KEYS],
    tensors: &[&PAIRED_HEADS],
    prepare: |_| Ok(()),
};

pub(super) static GRANITE_KEYS: &[super::super::family::Key] = &[
    key("embedding_multiplier", "embedding_scale", Float),
    key("residual_multiplier", "residual_scale", Float),
    key("attention_multiplier", "attention.scale", Float),
    key("logits_scaling", "logit_scale", Float),
];

pub(crate) static MISTRAL3: Family = Family {
    names: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
    arch: "mistral3",
    keys: &[&[key("llama_4_scaling_beta", "attention.temperature_scale", OptionalFloat)]],
    tensors: &[&PAIRED_HEADS],
    prepare: |import| {
        import.set_temperature()?;
        limit_context(import)
    },
};

pub(crate) static BITNET: Family = Family {
    names: &["BitNetForCausalLM", "BitnetForCausalLM"],
    arch: "bitnet",
    keys: &[&[key("hidden_act", "hidden_act", OptionalText)]],
    tensors: &[&[
        rule("layers.self_attn.attn_sub_norm", "attn_sub_norm"),
        rule("layers.mlp.ffn_sub_norm", "ffn_sub_norm"),
    ]],
    prepare: |_| Ok(()),
};

pub(crate) static ARCEE: Family = Family {
    names: &["ArceeForCausalLM"],
    arch: "arcee",
    keys: &[],
    tensors: &[&PAIRED_HEADS],
    prepare: |import| import.want_text("hidden_act", "relu2"),
};

pub(crate) static STARCODER2: Family = Family {
    names: &["Starcoder2ForCausalLM"],
    arch: "starcoder2",
    keys: &[&[key("norm_epsilon", "attention.layer_norm_epsilon", Float)]],
    tensors: &[&[rule("layers.mlp.c_fc", "ffn_up"), rule("layers.mlp.c_proj", "ffn_down")]],
    prepare: |import| {
        import.want_text("hidden_act", "gelu_pytorch_tanh")?;
        limit_context(import)
    },
};

pub(crate) static JAIS2: Family = Family {
    names: &["Jais2ForCausalLM"],
    arch: "jais2",
    keys: &[&[key("layer_norm_eps", "attention.layer_norm_epsilon", Float)]],
    tensors: &[],
    prepare: |import| import.want_text("hidden_act", "relu2"),
};

pub(crate) static STABLELM: Family = Family {
    names: &["StableLmForCausalLM"],
    arch: "stablelm",
    keys: &[&[
        key("layer_norm_eps", "attention.layer_norm_epsilon", Float),
        key("use_parallel_residual", "use_parallel_residual", OptionalBool),
    ]],
    tensors: &[],
    prepare: |import| {
        import.want_text("hidden_act", "silu")?;
        import.want_bool("use_parallel_residual", false)?;
        import.want_bool("qk_layernorm", false)
    },
};

/// Models whose graph has no window: texts of at most that many tokens are the same without it.
pub(super) fn limit_context(import: &mut Import) -> Result<(), FormatError> {
    let window = import.config.optional_usize("sliding_window")?.filter(|window| *window > 0);
    let listed = import.config.optional_strings("layer_types")?;
    let local = match listed {
        Some(listed) => listed.contains(&"sliding_attention"),
        None => import.config.optional_bool("use_sliding_window")?.unwrap_or(true),
    };
    if let Some(window) = window.filter(|_| local)
        && window < import.config.usize("max_position_embeddings")?
    {
        import.set("context_length", Value::Uint(window));
    }
    Ok(())
}

impl Import {
    /// The window of a model in which every `run`th layer has full attention; refuses
    /// another order of layers.
    pub(super) fn set_window(&mut self, run: u64) -> Result<(), FormatError> {
        let window = self.config.usize("sliding_window")?;
        let listed = self.config.optional_strings("layer_types")?.unwrap_or_default();
        let differs =
            listed.iter().zip(1..).any(|(kind, layer)| (*kind == "full_attention") != (layer % run == 0));
        if differs {
            let want = format!("full_attention in every layer {run} and sliding_attention in the others");
            return Err(self.config.wrong("layer_types", &want));
        }
        self.set("attention.sliding_window", Value::Uint(window));
        Ok(())
    }

    /// How scores grow with the position, if they do.
    pub(super) fn set_temperature(&mut self) -> Result<(), FormatError> {
        let parameters = self.config.object("rope_parameters")?;
        let beta = parameters.map(|p| p.optional_f64("llama_4_scaling_beta")).transpose()?.flatten();
        if let Some(beta) = beta {
            self.set("attention.temperature_scale", Value::Float(beta));
        }
        Ok(())
    }

    /// How many layers add features of images.
    pub(super) fn set_features(&mut self) -> Result<(), FormatError> {
        let Some(vision) = self.config.object("vision_config")? else { return Ok(()) };
        let layers = vision.optional_usizes("deepstack_visual_indexes")?.unwrap_or_default().len();
        self.set("n_deepstack_layers", Value::Uint(layers as u64));
        Ok(())
    }

    /// The parts of positions that pairs of columns use, or the usual ones.
    pub(super) fn set_sections(&mut self, usual: [u64; 3]) -> Result<(), FormatError> {
        let of = |key: &str| -> Result<Option<Vec<u64>>, FormatError> {
            Ok(self.config.object(key)?.map(|o| o.optional_usizes("mrope_section")).transpose()?.flatten())
        };
        let listed = match of("rope_parameters")? {
            Some(listed) => Some(listed),
            None => of("rope_scaling")?,
        };
        let mut sections = listed.unwrap_or_else(|| usual.to_vec());
        if sections.len() != 3 {
            let found = Json::from(sections).to_string();
            let (file, key) = ("config.json".into(), "mrope_section".into());
            return Err(FolderError::Key { file, key, want: "three sizes".into(), found }.into());
        }
        sections.push(0);
        self.set("rope.dimension_sections", Value::Ints(sections.into_iter().map(|n| n as i64).collect()));
        Ok(())
    }
}
