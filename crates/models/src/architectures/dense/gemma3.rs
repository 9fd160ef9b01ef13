//! Gemma 3: scaled embeddings, norms before and after each half of a layer, five
//! local layers to a global one.

use tern_graph::{Activation, ImageOrder, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GEMMA3: Arch = Arch {
    name: "gemma3",
    build,
    synthetic: Synthetic { keys: &[("attention.sliding_window", Number::Integer(32))], ..Synthetic::PLAIN },
};

/// Every sixth layer has full attention; the five before it have a window.
const PATTERN: usize = 6;
/// Rotation base of the local layers if the file has no key for it: no released model differs.
const LOCAL_ROPE_BASE: f32 = 10_000.0;
/// Layers of the 27B, the one size whose query scale comes from `width / heads`.
const LAYERS_27B: usize = 62;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let c = b.config.clone();
    let base = b.keys().f32("rope.freq_base")?;
    let local_base = b.keys().optional_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_ROPE_BASE);
    let window = b.window()?;
    let (global, local) = (b.rope_table(base)?, b.plain_rope_table(local_base, c.rope_dims)?);
    let scale_dim = if c.layers == LAYERS_27B { c.width / c.heads } else { c.head_dim };
    let layers = LayerStyle {
        embedding_scale: (c.width as f32).sqrt(),
        activation: Activation::GeluTanh,
        ..LayerStyle::BOTH_NORMS
    };
    let style = |table| {
        AttentionStyle::full(RopeStyle::Halves, table, QkNorm::Heads, 1.0 / (scale_dim as f32).sqrt())
    };
    let images = if b.sees { ImageOrder::Whole } else { ImageOrder::Sequence };
    let style = |table| AttentionStyle { images, ..style(table) };
    let (full, local) = (style(global), AttentionStyle { window: Some(window), ..style(local) });
    let logits = b.decoder(&layers, |layer| if ends_run(layer, PATTERN) { full } else { local })?;
    b.softcap_logits(logits)
}
