//! GLM 4.5 to 4.7 with experts: part of each head rotated, plain layers first, and one
//! expert that all tokens share.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GLM4_MOE: Arch = Arch {
    name: "glm4moe",
    build,
    synthetic: Synthetic {
        tensors: &[
            "ffn_gate.weight",
            "ffn_gate_shexp.weight",
            "exp_probs_b.bias",
            "attn_q.bias",
            "attn_k.bias",
            "attn_v.bias",
            "attn_q_norm.weight",
        ],
        keys: &[
            ("rope.dimension_count", Number::Integer(16)),
            ("leading_dense_block_count", Number::Integer(1)),
            ("expert_shared_count", Number::Integer(1)),
            ("expert_gating_func", Number::Integer(2)),
            ("expert_weights_norm", Number::Bool(true)),
            ("expert_weights_scale", Number::Float(1.5)),
        ],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.skip_drafting_layers()?;
    let base = b.keys().f32("rope.freq_base")?;
    let qk_norm = if b.has("blk.0.attn_q_norm.weight") { QkNorm::Heads } else { QkNorm::None };
    let style = b.uniform_style(RopeStyle::Halves, base, qk_norm)?;
    let layers = LayerStyle {
        norms_before: Some(["attn_norm", "post_attention_norm"]),
        experts: Some(b.expert_style(Gating::Sigmoid, false)?),
        ..LayerStyle::PRE_NORM
    };
    b.decoder(&layers, |_| style)?;
    Ok(())
}
