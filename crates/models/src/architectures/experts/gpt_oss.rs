//! gpt-oss: a window in every second layer, a sink per head, biases, and experts with a clamped activation.

use tern_graph::{Activation, Gating, RopeStyle};

use crate::layers::{AttentionStyle, ExpertStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GPT_OSS: Arch = Arch {
    name: "gpt-oss",
    build,
    synthetic: Synthetic {
        tensors: &[
            "attn_q.bias",
            "attn_k.bias",
            "attn_v.bias",
            "attn_output.bias",
            "attn_sinks.weight",
            "ffn_gate_inp.bias",
            "ffn_gate_exps.bias",
            "ffn_up_exps.bias",
            "ffn_down_exps.bias",
        ],
        keys: &[("attention.sliding_window", Number::Integer(8))],
        ..Synthetic::PLAIN
    },
};

/// Every second layer has full attention; the one before it has a window.
const PATTERN: usize = 2;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let full = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    let full = AttentionStyle { sinks: true, ..full };
    let local = AttentionStyle { window: Some(b.window()?), ..full };
    let experts = b.expert_style(Gating::ChosenSoftmax, false)?;
    let layers = LayerStyle {
        norms_before: Some(["attn_norm", "post_attention_norm"]),
        experts: Some(ExpertStyle { activation: Activation::SwigluOai, ..experts }),
        ..LayerStyle::PRE_NORM
    };
    b.decoder(&layers, |layer| if ends_run(layer, PATTERN) { full } else { local })?;
    Ok(())
}
