//! StableLM 2 1.6B and StableLM 3B: the plain decoder with layer norms, and part of each head rotated.

use tern_graph::RopeStyle;

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static STABLELM: Arch = Arch {
    name: "stablelm",
    build,
    synthetic: Synthetic {
        tensors: &[
            "ffn_gate.weight",
            "attn_norm.bias",
            "attn_q.bias",
            "attn_k.bias",
            "attn_v.bias",
            "ffn_norm.bias",
        ],
        keys: &[("rope.dimension_count", Number::Integer(8)), ("use_parallel_residual", Number::Bool(false))],
        has_layer_norms: true,
        ..Synthetic::PLAIN
    },
};

/// Rotation base of files without the key.
const ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.layer_norms = true;
    let base = b.keys().optional_f32("rope.freq_base")?.unwrap_or(ROPE_BASE);
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    b.decoder(&LayerStyle::PRE_NORM, |_| style)?;
    Ok(())
}
