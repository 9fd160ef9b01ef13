//! EmbeddingGemma: the layers of Gemma 3 in both directions, the mean of all tokens,
//! which is multiplied by two matrices.

use tern_graph::{Activation, Pooling, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GEMMA_EMBEDDING: Arch = Arch {
    name: "gemma-embedding",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "dense_2.weight", "dense_3.weight"],
        keys: &[
            ("attention.sliding_window", Number::Integer(17)),
            ("pooling_type", Number::Integer(1)),
            ("dense_2_feat_in", Number::Integer(256)),
            ("dense_2_feat_out", Number::Integer(512)),
            ("dense_3_feat_in", Number::Integer(512)),
            ("dense_3_feat_out", Number::Integer(256)),
        ],
        ..Synthetic::PLAIN
    },
};

/// Every sixth layer has full attention; the five before it have a window.
const PATTERN: usize = 6;
/// Rotation base of the local layers if the file has no key for it.
const LOCAL_ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let c = b.config.clone();
    let base = b.keys().f32("rope.freq_base")?;
    let local_base = b.keys().optional_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_ROPE_BASE);
    let pattern = b.keys().optional_usize("attention.sliding_window_pattern")?.unwrap_or(PATTERN).max(1);
    let window = b.window()?;
    let (global, local) = (b.rope_table(base)?, b.plain_rope_table(local_base, c.rope_dims)?);
    let layers = LayerStyle {
        embedding_scale: (c.width as f32).sqrt(),
        activation: Activation::GeluTanh,
        ..LayerStyle::BOTH_NORMS
    };
    let style = |table| AttentionStyle {
        causal: false,
        ..AttentionStyle::full(RopeStyle::Halves, table, QkNorm::Heads, 1.0 / (c.head_dim as f32).sqrt())
    };
    let (full, local) = (style(global), AttentionStyle { window: Some(window), ..style(local) });
    b.encoder(&layers, |layer| if ends_run(layer, pattern) { full } else { local }, Pooling::Mean)
}
