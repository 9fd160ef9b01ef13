//! Decoders with experts and plain attention.

use serde_json::Value as Json;

use super::super::family::Kind::{OptionalFloat, OptionalUint, Uint};
use super::super::family::{EXPERT_KEYS, Family, PAIRED_HEADS, key, rule};
use super::super::import::{Import, shape_error};
use super::super::matrix::Matrix;
use super::dense::{GRANITE_KEYS, limit_context};
use crate::{FormatError, Value};

/// How experts are chosen, as GGUF numbers it.
pub(super) const SOFTMAX: u64 = 1;
pub(super) const SIGMOID: u64 = 2;

pub(crate) static MIXTRAL: Family = Family {
    names: &["MixtralForCausalLM"],
    arch: "llama",
    keys: &[EXPERT_KEYS],
    tensors: &[
        &PAIRED_HEADS,
        &[
            rule("layers.block_sparse_moe.gate", "ffn_gate_inp"),
            rule("layers.block_sparse_moe.experts.*.w1", "ffn_gate_exps"),
            rule("layers.block_sparse_moe.experts.*.w3", "ffn_up_exps"),
            rule("layers.block_sparse_moe.experts.*.w2", "ffn_down_exps"),
        ],
    ],
    prepare: limit_context,
};

pub(crate) static QWEN3MOE: Family = Family {
    names: &["Qwen3MoeForCausalLM"],
    arch: "qwen3moe",
    keys: &[EXPERT_KEYS],
    tensors: &[],
    prepare: |import| {
        import.check_all_experts()?;
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")?;
        limit_context(import)
    },
};

pub(crate) static QWEN3VL_MOE: Family = Family {
    names: &["Qwen3VLMoeForConditionalGeneration"],
    arch: "qwen3vlmoe",
    keys: &[EXPERT_KEYS],
    tensors: &[],
    prepare: |import| {
        import.check_all_experts()?;
        import.exchange_experts()?;
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")?;
        import.set_features()?;
        import.set_sections([24, 20, 20])?;
        // its logits are not those of transformers yet
        Err(import.config.wrong("model_type", "another model: folders of qwen3_vl_moe do not work yet"))
    },
};

pub(crate) static GRANITE_MOE: Family = Family {
    names: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    arch: "granitemoe",
    keys: &[
        GRANITE_KEYS,
        EXPERT_KEYS,
        &[key("shared_intermediate_size", "expert_shared_feed_forward_length", OptionalUint)],
    ],
    tensors: &[&PAIRED_HEADS, &[rule("layers.block_sparse_moe.router.layer", "ffn_gate_inp")]],
    prepare: |import| import.split_granite_experts("_shexp"),
};

pub(crate) static GLM4_MOE: Family = Family {
    names: &["Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"],
    arch: "glm4moe",
    keys: &[EXPERT_KEYS],
    tensors: &[&[rule("layers.post_attention_layernorm", "post_attention_norm")]],
    prepare: |import| {
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

pub(crate) static SOLAR_OPEN: Family = Family {
    names: &["SolarOpenForCausalLM"],
    arch: "glm4moe",
    // all layers have experts
    keys: &[EXPERT_KEYS, &[key("moe_intermediate_size", "feed_forward_length", Uint)]],
    tensors: GLM4_MOE.tensors,
    prepare: GLM4_MOE.prepare,
};

pub(crate) static GPT_OSS: Family = Family {
    names: &["GptOssForCausalLM"],
    arch: "gpt-oss",
    keys: &[EXPERT_KEYS, &[key("intermediate_size", "expert_feed_forward_length", Uint)]],
    tensors: &[&[
        rule("layers.post_attention_layernorm", "post_attention_norm"),
        rule("layers.self_attn.sinks", "attn_sinks.weight"),
        rule("layers.mlp.router", "ffn_gate_inp"),
        rule("layers.mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    ]],
    prepare: |import| {
        import.set_window(2)?;
        (0..import.layers()?).try_for_each(|layer| import.interleaved_experts(layer))
    },
};

pub(crate) static OLMOE: Family = Family {
    names: &["OlmoeForCausalLM"],
    arch: "olmoe",
    keys: &[EXPERT_KEYS, &[key("intermediate_size", "expert_feed_forward_length", Uint)]],
    tensors: &[],
    prepare: |import| {
        if import.config.optional_f64("clip_qkv")?.is_some() {
            return Err(import.config.wrong("clip_qkv", "null"));
        }
        import.set("expert_gating_func", Value::Uint(SOFTMAX));
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

pub(crate) static MINIMAX_M2: Family = Family {
    names: &["MiniMaxM2ForCausalLM"],
    arch: "minimax-m2",
    keys: &[
        EXPERT_KEYS,
        &[
            key("intermediate_size", "expert_feed_forward_length", Uint),
            key("rotary_dim", "rope.dimension_count", OptionalUint),
        ],
    ],
    tensors: &[&[
        rule("layers.block_sparse_moe.gate", "ffn_gate_inp"),
        rule("layers.block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"),
        rule("layers.block_sparse_moe.experts.*.w1", "ffn_gate_exps"),
        rule("layers.block_sparse_moe.experts.*.w3", "ffn_up_exps"),
        rule("layers.block_sparse_moe.experts.*.w2", "ffn_down_exps"),
    ]],
    prepare: |import| {
        import.want_text("scoring_func", "sigmoid")?;
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        Ok(())
    },
};

pub(crate) static HUNYUAN_MOE: Family = Family {
    names: &["HunYuanMoEV1ForCausalLM"],
    arch: "hunyuan-moe",
    keys: &[&[key("num_experts", "expert_count", Uint)]],
    tensors: &[&[
        rule("layers.self_attn.query_layernorm", "attn_q_norm"),
        rule("layers.self_attn.key_layernorm", "attn_k_norm"),
        rule("layers.mlp.gate.wg", "ffn_gate_inp"),
        rule("layers.mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
        rule("layers.mlp.shared_mlp.up_proj", "ffn_up_shexp"),
        rule("layers.mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    ]],
    prepare: |import| {
        let used = import.same_in_all_layers("moe_topk")?;
        let used = used.ok_or_else(|| import.config.missing("moe_topk"))?;
        let ff = match import.same_in_all_layers("moe_intermediate_size")? {
            Some(ff) => ff,
            None => import.config.usize("intermediate_size")?,
        };
        let shared = import.same_in_all_layers("num_shared_expert")?.unwrap_or(1);
        import.set("expert_used_count", Value::Uint(used));
        import.set("expert_feed_forward_length", Value::Uint(ff));
        import.set("expert_shared_feed_forward_length", Value::Uint(ff.saturating_mul(shared)));
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

pub(crate) static ERNIE_MOE: Family = Family {
    names: &["Ernie4_5_MoeForCausalLM"],
    arch: "ernie4_5-moe",
    keys: &[&[
        key("moe_num_experts", "expert_count", Uint),
        key("moe_k", "expert_used_count", Uint),
        key("moe_intermediate_size", "expert_feed_forward_length", Uint),
        key("moe_num_shared_experts", "expert_shared_count", OptionalUint),
        key("moe_layer_start_index", "leading_dense_block_count", OptionalUint),
        key("moe_layer_interval", "interleave_moe_layer_step", OptionalUint),
    ]],
    tensors: &[&[rule("layers.mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias")]],
    prepare: |import| {
        let last = import.layers()? - 1;
        match import.config.get("moe_layer_end_index").and_then(Json::as_i64) {
            Some(end) if end >= 0 && end as u64 != last => {
                Err(import.config.wrong("moe_layer_end_index", &format!("the last layer, {last}, or -1")))
            }
            _ => import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        }
    },
};

pub(crate) static EXAONE_MOE: Family = Family {
    names: &["ExaoneMoeForCausalLM"],
    arch: "exaone-moe",
    keys: &[EXPERT_KEYS, &[key("num_shared_experts", "expert_shared_count", OptionalUint)]],
    tensors: &[&[rule("layers.mlp.e_score_correction_bias", "exp_probs_b.bias")]],
    prepare: |import| {
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        import.set_window(4)?;
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

pub(crate) static HY_V3: Family = Family {
    names: &["HYV3ForCausalLM"],
    arch: "hy_v3",
    keys: &[
        EXPERT_KEYS,
        &[
            key("num_shared_experts", "expert_shared_count", OptionalUint),
            key("router_scaling_factor", "expert_weights_scale", OptionalFloat),
        ],
    ],
    tensors: &[&[
        rule("layers.mlp.router.gate", "ffn_gate_inp"),
        rule("layers.mlp.expert_bias", "exp_probs_b.bias"),
        rule("layers.mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
        rule("layers.mlp.shared_mlp.up_proj", "ffn_up_shexp"),
        rule("layers.mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    ]],
    prepare: |import| {
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

pub(crate) static MELLUM: Family = Family {
    names: &["MellumForCausalLM"],
    arch: "mellum",
    keys: &[EXPERT_KEYS],
    tensors: &[],
    prepare: |import| {
        import.set_window(4)?;
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    },
};

/// The bound of the activation, a constant of Maple's code.
const MAPLE_CLAMP: f32 = 7.0;

pub(crate) static MAPLE: Family = Family {
    names: &["MapleForCausalLM"],
    arch: "maple",
    keys: &[EXPERT_KEYS],
    tensors: &[&[
        rule("word_embeddings", "token_embd"),
        // all experts in one tensor; otherwise there is one per expert
        rule("layers.mlp.experts.gate_proj.weight", "ffn_gate_exps.weight"),
        rule("layers.mlp.experts.up_proj.weight", "ffn_up_exps.weight"),
        rule("layers.mlp.experts.down_proj.weight", "ffn_down_exps.weight"),
    ]],
    prepare: |import| {
        import.want_text("hidden_act", "silu")?;
        import.want_bool("use_bias", false)?;
        import.want_bool("norm_topk_prob", true)?;
        let layers = import.layers()?;
        import.set_local_layers(None)?;
        // only layers with a window are rotated
        let rotated = import.rotated_columns(None)?;
        import.set("rope.dimension_count", Value::Uint(0));
        import.set("rope.dimension_count_swa", Value::Uint(rotated));
        import.set("expert_gating_func", Value::Uint(SOFTMAX));
        import.set("expert_weights_norm", Value::Bool(true));
        import.set("swiglu_clamp_exp", Value::Floats(vec![MAPLE_CLAMP; layers as usize]));
        Ok(())
    },
};

impl Import {
    /// A number, or a list of one per layer that must be equal.
    fn same_in_all_layers(&self, key: &str) -> Result<Option<u64>, FormatError> {
        if !matches!(self.config.get(key), Some(Json::Array(_))) {
            return self.config.optional_usize(key);
        }
        let listed = self.config.optional_usizes(key)?.unwrap_or_default();
        match listed.split_first() {
            Some((first, others)) if others.iter().all(|other| other == first) => Ok(Some(*first)),
            _ => Err(self.config.wrong(key, "the same number for all layers")),
        }
    }

    /// Refuses models in which some layers have no experts.
    pub(super) fn check_all_experts(&self) -> Result<(), FormatError> {
        if self.config.optional_usize("decoder_sparse_step")?.unwrap_or(1) != 1 {
            return Err(self.config.wrong("decoder_sparse_step", "1"));
        }
        match self.config.optional_usizes("mlp_only_layers")? {
            Some(layers) if !layers.is_empty() => Err(self.config.wrong("mlp_only_layers", "no layers")),
            _ => Ok(()),
        }
    }

    /// The experts of Granite, and the MLP that all tokens share, whose tensors get this suffix.
    pub(super) fn split_granite_experts(&mut self, suffix: &str) -> Result<(), FormatError> {
        self.split_gate_up("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight")?;
        for layer in 0..self.layers()? {
            let name = |part: &str| format!("layers.{layer}.shared_mlp.{part}_linear.weight");
            let Some(both) = self.take_optional(&name("input")) else { continue };
            let half = both.rows() / 2;
            let down = self.take(&name("output"))?;
            self.put(format!("blk.{layer}.ffn_gate{suffix}.weight"), both.clone().row_range(0, half))?;
            self.put(format!("blk.{layer}.ffn_up{suffix}.weight"), both.row_range(half, half))?;
            self.put(format!("blk.{layer}.ffn_down{suffix}.weight"), down)?;
        }
        Ok(())
    }

    /// Exchanges rows and columns of experts that are stored as `[experts, columns, rows]`.
    fn exchange_experts(&mut self) -> Result<(), FormatError> {
        let (width, inner) = (self.config.usize("hidden_size")?, self.config.usize("moe_intermediate_size")?);
        for layer in 0..self.layers()? {
            let name = |part: &str| format!("layers.{layer}.mlp.experts.{part}");
            let exchanged = self.weights.get(&name("down_proj")).is_some_and(|down| {
                down.is_float()
                    && down.shape.len() == 3
                    && down.shape[1..] == [inner, width]
                    && inner != width
            });
            for part in ["gate_up_proj", "down_proj"].into_iter().filter(|_| exchanged) {
                let matrix = self.take(&name(part))?;
                if !matrix.is_float() || matrix.shape.len() != 3 {
                    return Err(shape_error(&name(part), &[0, 0, 0], &matrix.shape));
                }
                self.weights.insert(name(part), matrix.transposed());
            }
        }
        Ok(())
    }

    /// Experts in one tensor of `[experts, gate and up, columns]` and one of
    /// `[experts, columns, inner]`, if layers have them.
    pub(super) fn split_gate_up(&mut self, both: &str, down: &str) -> Result<(), FormatError> {
        for layer in 0..self.layers()? {
            let name = format!("layers.{layer}.{both}");
            let Some(both) = self.take_optional(&name) else { continue };
            let &[experts, rows, cols] = both.shape.as_slice() else {
                return Err(shape_error(&name, &[0, 0, 0], &both.shape));
            };
            let half = rows / 2;
            let part = |start: u64| -> Matrix {
                let row = move |r: u64| (r / half * rows + start + r % half) as u32;
                let order = (0..experts * half).map(row).collect();
                both.clone().gathered(order).reshaped(vec![experts, half, cols])
            };
            let (gate, up) = (part(0), part(half));
            self.put(format!("blk.{layer}.ffn_gate_exps.weight"), gate)?;
            self.put(format!("blk.{layer}.ffn_up_exps.weight"), up)?;
            let down = self.take(&format!("layers.{layer}.{down}"))?;
            self.put(format!("blk.{layer}.ffn_down_exps.weight"), down)?;
        }
        Ok(())
    }

    /// The experts of gpt-oss: gate and up are the even and the odd rows. Floats are stored
    /// with exchanged dimensions.
    fn interleaved_experts(&mut self, layer: u64) -> Result<(), FormatError> {
        let name = |part: &str| format!("layers.{layer}.mlp.experts.{part}");
        let (both, down) = (self.take(&name("gate_up_proj"))?, self.take(&name("down_proj"))?);
        let (both, down) = match both.is_float() && down.is_float() {
            true if both.shape.len() == 3 && down.shape.len() == 3 => (both.transposed(), down.transposed()),
            _ => (both, down),
        };
        let bias = self.take(&name("gate_up_proj_bias"))?;
        let &[experts, rows, cols] = both.shape.as_slice() else {
            return Err(shape_error(&name("gate_up_proj"), &[0, 0, 0], &both.shape));
        };
        if bias.shape != [experts, rows] {
            return Err(shape_error(&name("gate_up_proj_bias"), &[experts, rows], &bias.shape));
        }
        let half = rows / 2;
        let order = |odd: u64| -> Vec<u32> { (0..experts * half).map(|r| (2 * r + odd) as u32).collect() };
        for (odd, part) in [(0, "gate"), (1, "up")] {
            let weight = both.clone().gathered(order(odd)).reshaped(vec![experts, half, cols]);
            self.put(format!("blk.{layer}.ffn_{part}_exps.weight"), weight)?;
            let vector = bias.clone().in_f32().reshaped(vec![experts * rows]);
            let vector = vector.gathered(order(odd)).reshaped(vec![experts, half]);
            self.put(format!("blk.{layer}.ffn_{part}_exps.bias"), vector)?;
        }
        self.put(format!("blk.{layer}.ffn_down_exps.weight"), down)
    }
}
