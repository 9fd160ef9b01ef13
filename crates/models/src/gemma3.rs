//! Gemma 3: scaled embeddings, norms before and after each half of a layer, five local layers to a global one.

use tern_graph::{Activation, RopeStyle};

use crate::blocks::AttentionStyle;
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static GEMMA3: Arch = Arch {
    name: "gemma3",
    build,
    synthetic: Synthetic { keys: &[("attention.sliding_window", 32)], ..Synthetic::PLAIN },
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
    let window = b.keys().usize("attention.sliding_window")?;
    if window == 0 {
        let text = format!("`{}` is 0: want 1 or more", b.keys().key("attention.sliding_window"));
        return Err(ModelError::Unsupported(text));
    }
    let (global, local) = (b.rope_table(base)?, b.plain_rope_table(local_base));
    let scale_dim = if c.layers == LAYERS_27B { c.width / c.heads } else { c.head_dim };
    let mut x = b.embed((c.width as f32).sqrt())?;
    for layer in 0..c.layers {
        let is_local = layer % PATTERN < PATTERN - 1;
        let style = AttentionStyle {
            rope: RopeStyle::Halves,
            table: if is_local { local } else { global },
            qk_norm: true,
            scale: 1.0 / (scale_dim as f32).sqrt(),
            window: is_local.then_some(window),
        };
        let name = |part: &str| format!("blk.{layer}.{part}");
        let normed = b.norm(x, &name("attn_norm"), c.width)?;
        let attended = b.attention(normed, layer, style)?;
        let attended = b.norm(attended, &name("post_attention_norm"), c.width)?;
        x = b.graph.add(x, attended)?;
        let normed = b.norm(x, &name("ffn_norm"), c.width)?;
        let hidden = b.gated_mlp(normed, layer, Activation::GeluTanh)?;
        let hidden = b.norm(hidden, &name("post_ffw_norm"), c.width)?;
        x = b.graph.add(x, hidden)?;
    }
    let logits = b.head(x)?;
    if let Some(cap) = b.keys().optional_f32("final_logit_softcapping")?.filter(|cap| *cap != 0.0) {
        b.graph.softcap(logits, cap);
    }
    Ok(())
}
