//! Gemma 2: as Gemma 3 with soft caps, without norms of heads, and with a window in every other layer.

use tern_graph::{Activation, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GEMMA2: Arch = Arch {
    name: "gemma2",
    build,
    synthetic: Synthetic {
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("attn_logit_softcapping", Number::Float(50.0)),
            ("final_logit_softcapping", Number::Float(30.0)),
        ],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

/// Layers of the 27B, the one size whose query scale comes from `width / heads`.
const LAYERS_27B: usize = 46;
/// Rotation base of files without the key.
const ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let c = b.config.clone();
    let (base, window) = (b.keys().optional_f32("rope.freq_base")?.unwrap_or(ROPE_BASE), b.window()?);
    let table = b.rope_table(base)?;
    let scale_dim = if c.layers == LAYERS_27B { c.width / c.heads } else { c.head_dim };
    let layers = LayerStyle {
        embedding_scale: (c.width as f32).sqrt(),
        activation: Activation::GeluTanh,
        ..LayerStyle::BOTH_NORMS
    };
    let scale = 1.0 / (scale_dim as f32).sqrt();
    let logits = b.decoder(&layers, |layer| AttentionStyle {
        window: layer.is_multiple_of(2).then_some(window),
        ..AttentionStyle::full(RopeStyle::Halves, table, QkNorm::None, scale)
    })?;
    b.softcap_logits(logits)
}
