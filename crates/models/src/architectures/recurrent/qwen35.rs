//! Qwen 3.5, 3.6 and 3.8, and Bonsai 27B: most layers have a gated delta rule, every fourth one attention
//! with a gate; with and without experts. Positions have three parts, which are equal for text.

use tern_graph::{Gating, KeyHeads, RopeStyle};

use crate::layers::{AttentionStyle, Gate, LayerStyle, Leftover, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

/// Sizes of the tiny shapes of tests, and decays that leave some memory.
pub(crate) static TINY: Synthetic = Synthetic {
    keys: &[
        ("rope.dimension_count", Number::Integer(16)),
        ("rope.dimension_sections", Number::Integers(&[3, 3, 2, 0])),
        ("full_attention_interval", Number::Integer(2)),
        ("ssm.conv_kernel", Number::Integer(4)),
        ("ssm.state_size", Number::Integer(32)),
        ("ssm.group_count", Number::Integer(2)),
        ("ssm.time_step_rank", Number::Integer(6)),
        ("ssm.inner_size", Number::Integer(192)),
    ],
    means: &[("ssm_a", -0.3)],
    ..Synthetic::PLAIN
};

/// The same with experts.
pub(crate) const TINY_EXPERTS: Synthetic = Synthetic {
    extends: Some(&TINY),
    tensors: &["ffn_gate_shexp.weight", "ffn_gate_inp_shexp.weight"],
    keys: &[("expert_shared_feed_forward_length", Number::Integer(160))],
    ..Synthetic::PLAIN
};

pub(crate) static QWEN35: Arch = Arch {
    name: "qwen35",
    build: |b| build(b, false),
    synthetic: Synthetic { extends: Some(&TINY), ..Synthetic::PLAIN },
};

pub(crate) static QWEN35_MOE: Arch =
    Arch { name: "qwen35moe", build: |b| build(b, true), synthetic: TINY_EXPERTS };

/// The sizes of Qwen 3.5 0.8B.
pub(crate) static SIZES_0_8B: Synthetic = Synthetic {
    extends: Some(&TINY),
    keys: &[
        ("rope.dimension_count", Number::Integer(64)),
        ("rope.dimension_sections", Number::Integers(&[11, 11, 10, 0])),
        ("full_attention_interval", Number::Integer(4)),
        ("ssm.state_size", Number::Integer(128)),
        ("ssm.group_count", Number::Integer(16)),
        ("ssm.time_step_rank", Number::Integer(16)),
        ("ssm.inner_size", Number::Integer(2048)),
    ],
    ..Synthetic::PLAIN
};

/// The sizes of Qwen 3.5 27B, and of Bonsai 27B.
pub(crate) static SIZES_27B: Synthetic = Synthetic {
    extends: Some(&SIZES_0_8B),
    keys: &[("ssm.time_step_rank", Number::Integer(48)), ("ssm.inner_size", Number::Integer(6144))],
    ..Synthetic::PLAIN
};

/// The same, stored rotated: Bonsai 2 27B.
pub(crate) static ROTATED_27B: Synthetic =
    Synthetic { extends: Some(&SIZES_27B), rotated: Some(1024), ..Synthetic::PLAIN };

/// A small shape, stored rotated with the spans of Bonsai 2 27B.
pub(crate) static ROTATED_SMALL: Synthetic = Synthetic {
    extends: Some(&SIZES_0_8B),
    rotated: Some(1024),
    keys: &[
        ("full_attention_interval", Number::Integer(2)),
        ("ssm.group_count", Number::Integer(4)),
        ("ssm.time_step_rank", Number::Integer(8)),
        ("ssm.inner_size", Number::Integer(1024)),
    ],
    ..Synthetic::PLAIN
};

/// The tiny shape, stored rotated.
pub(crate) static ROTATED_TINY: Synthetic =
    Synthetic { extends: Some(&TINY), rotated: Some(64), ..Synthetic::PLAIN };

fn build(b: &mut Build<'_>, experts: bool) -> Result<(), ModelError> {
    b.skip_drafting_layers()?;
    let net = b.delta_net(KeyHeads::Tiled)?;
    let recurrent = b.recurrent_layers()?;
    let base = b.keys().f32("rope.freq_base")?;
    let table = b.rope_table(base)?;
    let table = b.sections(table, Leftover::Still)?;
    let scale = b.attention_scale()?;
    let style = AttentionStyle {
        gate: Some(Gate::Queries),
        ..AttentionStyle::full(RopeStyle::Halves, table, QkNorm::Heads, scale)
    };
    let layers = LayerStyle {
        norms_before: Some(["attn_norm", "post_attention_norm"]),
        experts: if experts { Some(b.expert_style(Gating::Softmax, true)?) } else { None },
        ..LayerStyle::PRE_NORM
    };
    b.decoder_of(&layers, |b, x, layer| {
        if !recurrent[layer] {
            return b.attention(x, layer, style);
        }
        let (heads, name) = (net.rule.v_heads, |part: &str| format!("blk.{layer}.{part}"));
        let decay = b.linear(x, &name("ssm_alpha"), heads)?;
        let beta = b.linear(x, &name("ssm_beta"), heads)?;
        b.delta_layer(x, layer, &net, [decay, beta])
    })?;
    Ok(())
}
