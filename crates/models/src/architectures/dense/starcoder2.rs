//! StarCoder 2: layer norms, biases everywhere, and GELU without a gate in the MLP.

use tern_graph::RopeStyle;

use crate::layers::{LayerStyle, QkNorm, Ungated};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static STARCODER2: Arch = Arch {
    name: "starcoder2",
    build,
    synthetic: Synthetic {
        tensors: &[
            "attn_norm.bias",
            "attn_q.bias",
            "attn_k.bias",
            "attn_v.bias",
            "attn_output.bias",
            "ffn_norm.bias",
            "ffn_up.bias",
            "ffn_down.bias",
        ],
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
    b.decoder(&LayerStyle { ungated: Some(Ungated::GeluTanh), ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
