//! Decoders in which some layers have a window; often only these are rotated.

use super::super::family::Kind::{Float, OptionalBool, OptionalFloat, OptionalUint, Uint};
use super::super::family::{EXPERT_KEYS, Family, Key, PAIRED_HEADS, Rule, key, rule};
use super::super::import::Import;
use super::super::matrix::Matrix;
use super::dense::GRANITE_KEYS;
use super::experts::SIGMOID;
use super::gemma;
use crate::{FormatError, Value};

static COHERE_KEYS: &[Key] =
    &[key("layer_norm_eps", "attention.layer_norm_epsilon", Float), key("logit_scale", "logit_scale", Float)];

pub(crate) static COHERE: Family = Family {
    names: &["CohereForCausalLM"],
    arch: "command-r",
    keys: &[COHERE_KEYS],
    tensors: &[],
    prepare: |import| {
        import.want_text("hidden_act", "silu")?;
        import.want_bool("use_qk_norm", false)?;
        // the other key has what the first models were published with
        if let Some(length) = import.config.optional_usize("model_max_length")? {
            import.set("context_length", Value::Uint(length));
        }
        Ok(())
    },
};

pub(crate) static COHERE2: Family = Family {
    names: &["Cohere2ForCausalLM"],
    arch: "cohere2",
    keys: &[COHERE_KEYS],
    tensors: &[],
    prepare: |import| {
        import.want_text("hidden_act", "silu")?;
        import.want_bool("use_qk_norm", false)?;
        import.want_usize("sliding_window_pattern", 4)?;
        import.set_window(4)
    },
};

/// A norm before and one after each half of a layer, and a gate of attention.
static AFMOE_TENSORS: &[Rule] = &[
    rule("layers.post_attention_layernorm", "post_attention_norm"),
    rule("layers.pre_mlp_layernorm", "ffn_norm"),
    rule("layers.post_mlp_layernorm", "post_ffw_norm"),
    rule("layers.self_attn.gate_proj", "attn_gate"),
    rule("layers.mlp.router.gate", "ffn_gate_inp"),
    rule("layers.mlp.expert_bias", "exp_probs_b.bias"),
];

pub(crate) static AFMOE: Family = Family {
    names: &["AfmoeForCausalLM"],
    arch: "afmoe",
    keys: &[
        EXPERT_KEYS,
        &[
            key("num_shared_experts", "expert_shared_count", OptionalUint),
            key("num_dense_layers", "leading_dense_block_count", OptionalUint),
            key("route_norm", "expert_weights_norm", OptionalBool),
            key("route_scale", "expert_weights_scale", OptionalFloat),
        ],
    ],
    tensors: &[AFMOE_TENSORS],
    prepare: |import| {
        if import.config.optional_bool("mup_enabled")? != Some(true) {
            return Err(import.config.wrong("mup_enabled", "true"));
        }
        import.want_text("score_func", "sigmoid")?;
        import.want_usize("global_attn_every_n_layers", 4)?;
        import.set_window(4)?;
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        if import.config.get("route_norm").is_none() {
            import.set("expert_weights_norm", Value::Bool(true));
        }
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

/// A sink per head.
static SINKS: &[Rule] = &[rule("layers.self_attn.sinks", "attn_sinks.weight")];

pub(crate) static GRANITE_SWA: Family = Family {
    names: &["GraniteSWAForCausalLM"],
    arch: "granite_swa",
    keys: &[GRANITE_KEYS],
    tensors: &[&PAIRED_HEADS, SINKS],
    prepare: set_granite_layers,
};

pub(crate) static GRANITE_MOE_SWA: Family = Family {
    names: &["GraniteMoeSWAForCausalLM"],
    arch: "granite_swa",
    keys: &[
        GRANITE_KEYS,
        EXPERT_KEYS,
        &[key("shared_intermediate_size", "expert_shared_feed_forward_length", OptionalUint)],
    ],
    // gate and up are one tensor in files too
    tensors: &[
        &PAIRED_HEADS,
        SINKS,
        &[
            rule("layers.block_sparse_moe.router.layer", "ffn_gate_inp"),
            rule("layers.block_sparse_moe.router", "ffn_gate_inp"),
            rule("layers.block_sparse_moe.input_linear", "ffn_gate_up_exps"),
            rule("layers.block_sparse_moe.output_linear", "ffn_down_exps"),
            rule("layers.block_sparse_moe.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            rule("layers.block_sparse_moe.experts.down_proj", "ffn_down_exps.weight"),
            rule("layers.shared_mlp.input_linear", "ffn_up_shexp"),
            rule("layers.shared_mlp.output_linear", "ffn_down_shexp"),
        ],
    ],
    prepare: set_granite_layers,
};

fn set_granite_layers(import: &mut Import) -> Result<(), FormatError> {
    import.set_local_layers(Some(|layer| layer % 4 != 0))?;
    if let Some(rotated) = import.rotated_layers()?
        && rotated.contains(&false)
    {
        import.set("attention.rope_pattern", Value::Bools(rotated));
    }
    Ok(())
}

/// Epsilon of the norms after each half of a layer, for which files have no key.
const MUSE_EPS_AFTER: f64 = 1e-8;

pub(crate) static MUSE_GLIMMER: Family = Family {
    names: &["MuseGlimmerForConditionalGeneration"],
    arch: "muse-glimmer",
    keys: &[&[
        key("final_logit_softcapping", "final_logit_softcapping", OptionalFloat),
        key("output_multiplier", "logit_scale", Float),
    ]],
    tensors: &[
        &PAIRED_HEADS,
        &[rule("norm", "output_norm"), rule("layers.self_attn.gate_proj", "attn_gate")],
        &gemma::NORMS,
    ],
    prepare: |import| {
        import.want_text("hidden_activation", "silu")?;
        let is_local = import.set_local_layers(None)?;
        if import.rotated_layers()?.is_some_and(|rotated| rotated != is_local) {
            return Err(import.config.wrong("layer_rope_theta", "0 for layers with full attention alone"));
        }
        if let Some(eps) = import.config.optional_f64("post_norm_eps")?.filter(|eps| *eps != MUSE_EPS_AFTER) {
            import.set("attention.post_norm_rms_epsilon", Value::Float(eps));
        }
        // heads have no weights of their norms, and queries a factor after it
        let factor = import.config.f64("qk_scale_factor")? as f32;
        let heads = import.config.usize("num_attention_heads")?.max(1) as usize;
        for layer in 0..import.layers()? {
            let name = format!("layers.{layer}.self_attn.q_proj.weight");
            let Some(queries) = import.weights.get(&name) else { continue };
            let dim = queries.rows() / heads;
            for (part, factor) in [("attn_q_norm", factor), ("attn_k_norm", 1.0)] {
                import.put(format!("blk.{layer}.{part}.weight"), Matrix::vector(vec![factor; dim]))?;
            }
        }
        Ok(())
    },
};

pub(crate) static MIMO2: Family = Family {
    names: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
    arch: "mimo2",
    keys: &[
        EXPERT_KEYS,
        &[
            key("layernorm_epsilon", "attention.layer_norm_rms_epsilon", OptionalFloat),
            key("v_head_dim", "attention.value_length", Uint),
            key("attention_value_scale", "attention.value_scale", OptionalFloat),
            key("swa_rope_theta", "rope.freq_base_swa", OptionalFloat),
        ],
    ],
    tensors: &[SINKS, &[rule("layers.self_attn.attention_sink_bias", "attn_sinks.weight")]],
    prepare: |import| {
        let mlps = import.config.optional_strings("mlp_layer_types")?.unwrap_or_default();
        if mlps.iter().skip_while(|kind| **kind == "dense").any(|kind| *kind != "sparse") {
            return Err(import.config.wrong("mlp_layer_types", "dense for the first layers, then sparse"));
        }
        let kinds = import.config.optional_usizes("hybrid_layer_pattern")?;
        let is_local: Vec<bool> = match kinds {
            Some(kinds) => kinds.into_iter().map(|kind| kind == 1).collect(),
            None => import.set_local_layers(None)?,
        };
        let window = match import.config.optional_usize("sliding_window_size")? {
            Some(keys_before) => keys_before.saturating_add(1), // without the query itself
            None => import.config.usize("sliding_window")?,
        };
        let kv_heads = import.config.usize("num_key_value_heads")?;
        let local_kv_heads = import.config.optional_usize("swa_num_key_value_heads")?;
        let local_kv_heads = local_kv_heads.unwrap_or(kv_heads.saturating_mul(2));
        for (key, full) in [
            ("swa_head_dim", "head_dim"),
            ("swa_v_head_dim", "v_head_dim"),
            ("swa_num_attention_heads", "num_attention_heads"),
        ] {
            import.want_usize(key, import.config.usize(full)?)?;
        }
        let heads = |local: &bool| if *local { local_kv_heads as i64 } else { kv_heads as i64 };
        import.set("attention.head_count_kv", Value::Ints(is_local.iter().map(heads).collect()));
        import.set("attention.sliding_window_pattern", Value::Bools(is_local));
        import.set("attention.sliding_window", Value::Uint(window));
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

pub(crate) static FLINT: Family = Family {
    names: &["FlintForCausalLM"],
    arch: "flint",
    keys: &[EXPERT_KEYS],
    tensors: &[SINKS, &[rule("layers.self_attn.softmax_offset", "attn_sinks.weight")]],
    prepare: |import| {
        import.want_usize("decoder_sparse_step", 1)?;
        let plain = import.config.optional_usizes("mlp_only_layers")?.unwrap_or_default();
        if plain.iter().zip(0..).any(|(layer, i)| *layer != i) {
            return Err(import.config.wrong("mlp_only_layers", "the first layers, in order"));
        }
        import.set("leading_dense_block_count", Value::Uint(plain.len() as u64));
        import.set_local_layers(None)?;
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

impl Import {
    /// The window, and which layers have it: those that are listed or, without a list, the usual ones.
    pub(super) fn set_local_layers(
        &mut self,
        usual: Option<fn(u64) -> bool>,
    ) -> Result<Vec<bool>, FormatError> {
        let layers = self.layers()?;
        let known = |kind: &&str| ["sliding_attention", "full_attention"].contains(kind);
        let is_local: Vec<bool> = match (self.config.optional_strings("layer_types")?, usual) {
            (None, Some(usual)) => (0..layers).map(usual).collect(),
            (Some(kinds), _) if kinds.len() as u64 == layers && kinds.iter().all(known) => {
                kinds.iter().map(|kind| *kind == "sliding_attention").collect()
            }
            _ => {
                let want = format!("sliding_attention or full_attention for each of {layers} layers");
                return Err(self.config.wrong("layer_types", &want));
            }
        };
        self.set("attention.sliding_window_pattern", Value::Bools(is_local.clone()));
        self.set("attention.sliding_window", Value::Uint(self.config.usize("sliding_window")?));
        Ok(is_local)
    }

    /// Which layers are rotated, if they are listed: those whose base is not 0 have the model's.
    fn rotated_layers(&self) -> Result<Option<Vec<bool>>, FormatError> {
        let Some(bases) = self.config.optional_f64s("layer_rope_theta")? else { return Ok(None) };
        let (layers, parameters) = (self.layers()?, self.config.object("rope_parameters")?);
        let base = match parameters.map(|p| p.optional_f64("rope_theta")).transpose()?.flatten() {
            Some(base) => Some(base),
            None => self.config.optional_f64("rope_theta")?,
        };
        if bases.len() as u64 != layers || bases.iter().any(|b| *b != 0.0 && Some(*b) != base) {
            let want = format!("0 or `rope_theta` for each of {layers} layers");
            return Err(self.config.wrong("layer_rope_theta", &want));
        }
        Ok(Some(bases.iter().map(|base| *base != 0.0).collect()))
    }
}
