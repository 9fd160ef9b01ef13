//! Granite 3 and 4, without state, dense or with experts: factors on embeddings, scores, residuals and logits.

use tern_graph::{Gating, RopeStyle};

use crate::blocks::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GRANITE: Arch = Arch {
    name: "granite",
    build,
    synthetic: Synthetic {
        keys: &[
            ("embedding_scale", Number::Float(2.0)),
            ("residual_scale", Number::Float(1.7)),
            ("attention.scale", Number::Float(0.3)),
            ("logit_scale", Number::Float(0.5)),
        ],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

pub(crate) static GRANITE_MOE: Arch = Arch {
    name: "granitemoe",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate_shexp.weight"],
        keys: &[
            ("embedding_scale", Number::Float(2.0)),
            ("residual_scale", Number::Float(1.7)),
            ("attention.scale", Number::Float(0.3)),
            ("logit_scale", Number::Float(0.5)),
            ("expert_shared_feed_forward_length", Number::Integer(320)),
        ],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

/// Rotation base of files without the key.
const ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().optional_f32("rope.freq_base")?.unwrap_or(ROPE_BASE);
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    // files use this key to say that heads are not rotated
    let rotated = b.keys().optional_bool("rope.scaling.finetuned")?.unwrap_or(true);
    let style = AttentionStyle { table: style.table.filter(|_| rotated), ..style };
    let experts = b.optional_expert_style(Gating::Softmax, true)?;
    let factor = |key: &str| -> Result<f32, ModelError> {
        Ok(b.keys().optional_f32(key)?.filter(|x| *x != 0.0).unwrap_or(1.0))
    };
    let layers = LayerStyle {
        embedding_scale: factor("embedding_scale")?,
        residual_scale: factor("residual_scale")?,
        experts,
        ..LayerStyle::PRE_NORM
    };
    let divisor = b.keys().f32("logit_scale")?;
    if !(divisor.is_finite() && divisor != 0.0) {
        let key = b.keys().key("logit_scale");
        return Err(ModelError::Unsupported(format!("`{key}` is {divisor}: want a number that is not 0")));
    }
    let logits = b.decoder(&layers, |_| style)?;
    b.graph.scale(logits, 1.0 / divisor);
    Ok(())
}
