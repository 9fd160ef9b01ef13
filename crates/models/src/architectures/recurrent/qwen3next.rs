//! Qwen 3 Next: the layers of Qwen 3.5 with experts, whose decays and strengths are one
//! matrix, key head by key head.

use tern_graph::{Gating, KeyHeads, RopeStyle};

use crate::layers::{AttentionStyle, Gate, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError};

pub(crate) static QWEN3_NEXT: Arch =
    Arch { name: "qwen3next", build, synthetic: super::qwen35::TINY_EXPERTS };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.skip_drafting_layers()?;
    let net = b.delta_net(KeyHeads::Grouped)?;
    let recurrent = b.recurrent_layers()?;
    let base = b.keys().f32("rope.freq_base")?;
    let (table, scale) = (b.rope_table(base)?, b.attention_scale()?);
    let style = AttentionStyle {
        gate: Some(Gate::Queries),
        ..AttentionStyle::full(RopeStyle::Halves, table, QkNorm::Heads, scale)
    };
    let layers = LayerStyle {
        norms_before: Some(["attn_norm", "post_attention_norm"]),
        experts: Some(b.expert_style(Gating::Softmax, true)?),
        ..LayerStyle::PRE_NORM
    };
    b.decoder_of(&layers, |b, x, layer| {
        if !recurrent[layer] {
            return b.attention(x, layer, style);
        }
        let (rule, name) = (net.rule, |part: &str| format!("blk.{layer}.{part}"));
        if b.has(&name("ssm_in.weight")) {
            return Err(ModelError::OldFile { name: name("ssm_in"), arch: "qwen3next" });
        }
        let each = rule.v_heads / rule.k_heads; // [strengths, decays] of each key head
        let both = b.linear(x, &name("ssm_ba"), 2 * rule.v_heads)?;
        let beta = b.graph.head_columns(both, 2 * each, 0, each)?;
        let decay = b.graph.head_columns(both, 2 * each, each, each)?;
        b.delta_layer(x, layer, &net, [decay, beta])
    })?;
    Ok(())
}
