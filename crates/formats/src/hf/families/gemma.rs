//! Gemma 2 to 4: norms around both halves of a layer, local layers.

use super::super::family::Fix::{Keep, PlusOne};
use super::super::family::Kind::{OptionalFloat, OptionalUint};
use super::super::family::{Family, Key, Rule, fixed, key, rule};
use super::super::import::Import;
use super::super::matrix::Matrix;
use crate::{FormatError, Value};

static KEYS: &[Key] = &[
    key("attn_logit_softcapping", "attn_logit_softcapping", OptionalFloat),
    key("final_logit_softcapping", "final_logit_softcapping", OptionalFloat),
];

/// Norms are stored without their one.
pub(super) static NORMS: [Rule; 7] = [
    fixed("norm", "output_norm", PlusOne),
    fixed("layers.input_layernorm", "attn_norm", PlusOne),
    fixed("layers.post_attention_layernorm", "post_attention_norm", PlusOne),
    fixed("layers.pre_feedforward_layernorm", "ffn_norm", PlusOne),
    fixed("layers.post_feedforward_layernorm", "post_ffw_norm", PlusOne),
    fixed("layers.self_attn.q_norm", "attn_q_norm", PlusOne),
    fixed("layers.self_attn.k_norm", "attn_k_norm", PlusOne),
];

pub(crate) static GEMMA2: Family = Family {
    names: &["Gemma2ForCausalLM"],
    arch: "gemma2",
    keys: &[KEYS],
    tensors: &[&NORMS],
    prepare: |import| {
        import.check_scale(46)?;
        import.set_window(2)
    },
};

pub(crate) static GEMMA3: Family = Family {
    names: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    arch: "gemma3",
    keys: &[KEYS],
    tensors: &[&NORMS],
    prepare: |import| {
        import.check_scale(62)?;
        import.set_window(6)
    },
};

impl Import {
    /// The graph has the scale of heads, or in the largest size that of the width: other values are refused.
    pub(super) fn check_scale(&self, largest: u64) -> Result<(), FormatError> {
        let want = match self.layers()? == largest {
            true => self.config.usize("hidden_size")? / self.config.usize("num_attention_heads")?.max(1),
            false => self.head_dim()?,
        };
        match self.config.optional_f64("query_pre_attn_scalar")? {
            Some(scalar) if scalar != want as f64 => {
                Err(self.config.wrong("query_pre_attn_scalar", &format!("{want}, as in all released models")))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) static GEMMA4: Family = Family {
    names: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"],
    arch: "gemma4",
    keys: &[
        KEYS,
        &[
            key("num_experts", "expert_count", OptionalUint),
            key("top_k_experts", "expert_used_count", OptionalUint),
            key("moe_intermediate_size", "expert_feed_forward_length", OptionalUint),
        ],
    ],
    tensors: &[&[
        rule("layers.router.proj", "ffn_gate_inp"),
        rule("layers.router.scale", "ffn_gate_inp.scale"),
        rule("layers.router.per_expert_scale", "ffn_down_exps.scale"),
        rule("layers.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        rule("layers.experts.down_proj", "ffn_down_exps.weight"),
        rule("layers.post_feedforward_layernorm_1", "post_ffw_norm_1"),
        rule("layers.pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        rule("layers.post_feedforward_layernorm_2", "post_ffw_norm_2"),
        rule("layers.post_attention_layernorm", "post_attention_norm"),
        rule("layers.pre_feedforward_layernorm", "ffn_norm"),
        rule("layers.post_feedforward_layernorm", "post_ffw_norm"),
        fixed("layers.layer_scalar", "layer_output_scale.weight", Keep),
        rule("embed_tokens_per_layer", "per_layer_token_embd"),
        rule("per_layer_model_projection", "per_layer_model_proj"),
        rule("per_layer_projection_norm", "per_layer_proj_norm"),
        rule("layers.per_layer_input_gate", "inp_gate"),
        rule("layers.per_layer_projection", "proj"),
        rule("layers.post_per_layer_input_norm", "post_norm"),
    ]],
    prepare: prepare_gemma4,
};

/// More columns of a head than any model has.
const MAX_HEAD: u64 = 1 << 14;

/// More than a position can be: the pair is not rotated.
const NEVER: f32 = 1e30;

/// Layers have two shapes of heads, and a part of the pairs of the wider one is rotated.
fn prepare_gemma4(import: &mut Import) -> Result<(), FormatError> {
    if import.config.optional_bool("enable_moe_block")? != Some(true) {
        import.set("expert_count", Value::Uint(0));
        import.set("expert_used_count", Value::Uint(0));
    }
    let layers = import.layers()?;
    let listed =
        import.config.optional_strings("layer_types")?.ok_or_else(|| import.config.missing("layer_types"))?;
    let is_local: Vec<bool> = listed.iter().map(|kind| *kind == "sliding_attention").collect();
    if is_local.len() as u64 != layers {
        return Err(import.config.wrong("layer_types", &format!("{layers} types, one per layer")));
    }
    let local_dim = import.config.usize("head_dim")?;
    let own = |key: &str| -> Result<Option<u64>, FormatError> {
        let Some(all) = import.config.object("per_layer_config")? else { return Ok(None) };
        let first = is_local.iter().position(|local| !local).unwrap_or(0);
        all.object(&first.to_string())?.map_or(Ok(None), |layer| layer.optional_usize(key))
    };
    let dim = match import.config.optional_usize("global_head_dim")? {
        Some(dim) => dim,
        None => own("head_dim")?.unwrap_or(local_dim),
    };
    if dim > MAX_HEAD {
        return Err(import.config.wrong("global_head_dim", &format!("at most {MAX_HEAD}")));
    }
    let kv_heads = import.config.usize("num_key_value_heads")?;
    let global_heads = match import.config.optional_usize("num_global_key_value_heads")? {
        Some(heads) => heads,
        None => own("num_key_value_heads")?.unwrap_or(kv_heads),
    };
    let heads = is_local.iter().map(|local| if *local { kv_heads } else { global_heads }).collect();
    let shared = import.config.optional_usize("num_kv_shared_layers")?.unwrap_or(0);
    let ff = import.config.usize("intermediate_size")?;
    let wide = import.config.optional_bool("use_double_wide_mlp")?.unwrap_or(false);
    let lengths = (0..layers)
        .map(|layer| if wide && layer + shared >= layers { ff.saturating_mul(2) } else { ff })
        .collect();
    let rope = import
        .config
        .object("rope_parameters")?
        .map(|all| all.object("full_attention"))
        .transpose()?
        .flatten();
    let factor =
        rope.map(|rope| rope.optional_f64("partial_rotary_factor")).transpose()?.flatten().unwrap_or(1.0);
    let rotated = (dim as f64 * factor) as u64 / 2;
    let divisors = (0..dim / 2).map(|pair| if pair < rotated { 1.0 } else { NEVER }).collect();
    import.set("attention.head_count_kv", Value::Uints(heads));
    import.set("feed_forward_length", Value::Uints(lengths));
    import.set("attention.sliding_window", Value::Uint(import.config.usize("sliding_window")?));
    import.set("attention.sliding_window_pattern", Value::Bools(is_local));
    import.set("attention.shared_kv_layers", Value::Uint(shared));
    for (name, n) in [
        ("key_length", dim),
        ("value_length", dim),
        ("key_length_swa", local_dim),
        ("value_length_swa", local_dim),
    ] {
        import.set(&format!("attention.{name}"), Value::Uint(n));
    }
    import.set("rope.dimension_count", Value::Uint(dim));
    import.set("rope.dimension_count_swa", Value::Uint(local_dim));
    let input = import.config.optional_usize("hidden_size_per_layer_input")?.unwrap_or(0);
    import.set("embedding_length_per_layer_input", Value::Uint(input));
    import.put("rope_freqs.weight".into(), Matrix::vector(divisors))
}
