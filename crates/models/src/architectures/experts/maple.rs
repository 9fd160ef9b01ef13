//! Maple: Qwen 3 with experts, a window in some layers, which alone are rotated, and a clamped activation.

use tern_graph::{Activation, Gating, RopeStyle};

use crate::layers::{AttentionStyle, ExpertStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static MAPLE: Arch = Arch {
    name: "maple",
    build,
    synthetic: Synthetic {
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("attention.sliding_window_pattern", Number::PerLayer(&[true, true, true, false])),
            ("swiglu_clamp_exp", Number::Float(0.8)),
        ],
        ..Synthetic::PLAIN
    },
};

/// Bound of the activation in files without the key.
const CLAMP: f32 = 7.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let layers = b.config.layers;
    // the columns of the layers that are rotated; in files of llama.cpp's converter the other key is 0
    if let Some(dims) = b.keys().optional_usize("rope.dimension_count_swa")? {
        let head_dim = b.config.head_dim;
        if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            let want = format!("an even number up to {head_dim}");
            return Err(ModelError::value(b.keys().key("rope.dimension_count_swa"), dims, want));
        }
        b.config.rope_dims = dims;
    }
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let full = AttentionStyle { table: None, ..style };
    let local_base = b.keys().optional_f32("rope.freq_base_swa")?.unwrap_or(base);
    let local = AttentionStyle { table: Some(b.rope_table(local_base)?), window: Some(b.window()?), ..style };
    let is_local = b.listed_local_layers()?;
    let clamps = b.keys().f32_per_layer("swiglu_clamp_exp", layers)?.unwrap_or_else(|| vec![CLAMP; layers]);
    let clamp = clamps[0];
    if clamps.iter().any(|c| *c != clamp) {
        return Err(ModelError::DiffersByLayer(b.keys().key("swiglu_clamp_exp")));
    }
    let experts = b.expert_style(Gating::Softmax, true)?;
    let activation = if clamp > 0.0 { Activation::SwigluClamp(clamp) } else { Activation::Silu };
    let experts = Some(ExpertStyle { activation, ..experts });
    let decoder = LayerStyle { experts, ..LayerStyle::PRE_NORM };
    b.decoder(&decoder, |layer| if is_local[layer] { local } else { full })?;
    Ok(())
}
