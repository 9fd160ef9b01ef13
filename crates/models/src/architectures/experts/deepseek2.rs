//! DeepSeek V2 and V3, GLM 4.7 Flash, Kimi K2, Mistral Small 4: latent attention, and experts in groups with
//! some that all tokens share.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{AttentionStyle, Latent, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static DEEPSEEK2: Arch = Arch {
    name: "deepseek2",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight", "exp_probs_b.bias"],
        keys: &[
            ("attention.key_length", Number::Integer(64 + 16)),
            ("attention.value_length", Number::Integer(64)),
            ("attention.key_length_mla", Number::Integer(32 + 16)),
            ("attention.value_length_mla", Number::Integer(32)),
            ("attention.kv_lora_rank", Number::Integer(64)),
            ("attention.q_lora_rank", Number::Integer(96)),
            ("rope.dimension_count", Number::Integer(16)),
            ("rope.scaling.yarn_log_multiplier", Number::Float(0.08)),
            ("leading_dense_block_count", Number::Integer(1)),
            ("expert_shared_count", Number::Integer(2)),
            ("expert_group_count", Number::Integer(4)),
            ("expert_group_used_count", Number::Integer(2)),
            ("expert_gating_func", Number::Integer(2)),
            ("expert_weights_norm", Number::Bool(true)),
            ("expert_weights_scale", Number::Float(1.5)),
        ],
        ..Synthetic::PLAIN
    },
};

/// Mistral Small 4: scores grow with the position.
pub(crate) static MISTRAL4: Arch = Arch {
    name: "mistral4",
    build,
    synthetic: Synthetic {
        extends: Some(&DEEPSEEK2.synthetic),
        keys: &[("attention.temperature_scale", Number::Float(0.3))],
        ..Synthetic::PLAIN
    },
};

/// What a file of DeepSeek-V2-Lite has: one matrix of queries, and experts that are chosen
/// by softmax without groups.
pub(crate) static V2_LITE: Synthetic = Synthetic {
    tensors: &["attn_q.weight", "ffn_gate.weight", "ffn_gate_shexp.weight"],
    keys: &[
        ("attention.key_length", Number::Integer(512 + 64)),
        ("attention.value_length", Number::Integer(512)),
        ("attention.key_length_mla", Number::Integer(128 + 64)),
        ("attention.value_length_mla", Number::Integer(128)),
        ("attention.kv_lora_rank", Number::Integer(512)),
        ("rope.dimension_count", Number::Integer(64)),
        ("rope.scaling.yarn_log_multiplier", Number::Float(0.0707)),
        ("leading_dense_block_count", Number::Integer(1)),
        ("expert_shared_count", Number::Integer(2)),
        ("expert_gating_func", Number::Integer(1)),
        ("expert_weights_scale", Number::Float(1.0)),
    ],
    ..Synthetic::PLAIN
};

/// What a file of GLM 4.7 Flash has.
pub(crate) static GLM_FLASH: Synthetic = Synthetic {
    tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight", "exp_probs_b.bias"],
    keys: &[
        ("attention.key_length", Number::Integer(512 + 64)),
        ("attention.value_length", Number::Integer(512)),
        ("attention.key_length_mla", Number::Integer(192 + 64)),
        ("attention.value_length_mla", Number::Integer(256)),
        ("attention.kv_lora_rank", Number::Integer(512)),
        ("attention.q_lora_rank", Number::Integer(768)),
        ("rope.dimension_count", Number::Integer(64)),
        ("leading_dense_block_count", Number::Integer(1)),
        ("expert_shared_count", Number::Integer(1)),
        ("expert_gating_func", Number::Integer(2)),
        ("expert_weights_norm", Number::Bool(true)),
        ("expert_weights_scale", Number::Float(1.8)),
    ],
    ..Synthetic::PLAIN
};

/// Layers and vocabulary of GLM 4.7 Flash, whose first files do not name their gating.
const GLM_FLASH_LAYERS: [usize; 2] = [47, 48];
const GLM_FLASH_VOCAB: usize = 154_880;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let is_glm_flash = GLM_FLASH_LAYERS.contains(&b.config.layers) && b.config.vocab == GLM_FLASH_VOCAB;
    let gating = if is_glm_flash { Gating::Sigmoid } else { Gating::Softmax };
    b.skip_drafting_layers()?;
    let base = b.keys().f32("rope.freq_base")?;
    let (rank, key) =
        (b.keys().usize("attention.kv_lora_rank")?, b.keys().usize("attention.key_length_mla")?);
    let rotated = b.config.rope_dims;
    let Some(plain) = key.checked_sub(rotated).filter(|plain| *plain > 0) else {
        let want = format!("more than the {rotated} rotated");
        return Err(ModelError::value(b.keys().key("attention.key_length_mla"), key, want));
    };
    let latent = Latent {
        rank,
        plain,
        v_dim: b.keys().usize("attention.value_length_mla")?,
        q_rank: b.keys().optional_usize("attention.q_lora_rank")?.filter(|_| !b.has("blk.0.attn_q.weight")),
    };
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    let magnitude = b.yarn_score_magnitude()?;
    let scale = magnitude * magnitude / (key as f32).sqrt();
    let temperature = b.temperature()?;
    let style = AttentionStyle { scale, temperature, latent: Some(latent), ..style };
    let experts = Some(b.expert_style(gating, false)?);
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
