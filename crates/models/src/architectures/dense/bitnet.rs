//! BitNet b1.58: norms before the last matrix of attention and of the MLP, and squared ReLU.

use tern_graph::{Activation, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static BITNET: Arch = Arch {
    name: "bitnet",
    build,
    // the activation that llama.cpp has for all files
    synthetic: Synthetic {
        keys: &[("hidden_act", Number::Text("silu"))],
        embedding_gain: 0.7,
        ..Synthetic::PLAIN
    },
};

/// The name in Microsoft's own files.
pub(crate) static BITNET_B158: Arch = Arch { name: "bitnet-b1.58", build, synthetic: Synthetic::PLAIN };

/// Layers of the first published model, the one with SiLU.
const LAYERS_3B: usize = 26;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    let activation = match b.keys().optional_str("hidden_act")? {
        None if b.config.layers == LAYERS_3B => Activation::Silu,
        None | Some("relu2" | "relu_sqr") => Activation::Relu2,
        Some("silu") => Activation::Silu,
        Some(other) => {
            return Err(ModelError::name(b.keys().key("hidden_act"), other, "relu2 or silu"));
        }
    };
    let layers = LayerStyle { activation, sub_norm: Some("ffn_sub_norm"), ..LayerStyle::PRE_NORM };
    b.decoder(&layers, |_| AttentionStyle { sub_norm: Some("attn_sub_norm"), ..style })?;
    Ok(())
}
