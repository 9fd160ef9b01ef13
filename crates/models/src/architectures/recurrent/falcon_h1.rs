//! Falcon H1: every layer has attention and Mamba-2 side by side, on the same normalised value. Files contain
//! the factors of the model in their weights.

use tern_graph::RopeStyle;

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static FALCON_H1: Arch = Arch {
    name: "falcon-h1",
    build,
    synthetic: Synthetic {
        extends: Some(&super::mamba::TINY_LAYERS),
        tensors: &["ffn_norm"],
        ..Synthetic::PLAIN
    },
};

/// The sizes of Falcon H1 0.5B.
pub(crate) static SIZES_0_5B: Synthetic = Synthetic {
    extends: Some(&FALCON_H1.synthetic),
    keys: &[
        ("ssm.inner_size", Number::Integer(1536)),
        ("ssm.state_size", Number::Integer(128)),
        ("ssm.time_step_rank", Number::Integer(24)),
        ("ssm.group_count", Number::Integer(1)),
    ],
    ..Synthetic::PLAIN
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let mamba = b.mamba()?;
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    b.decoder_of(&LayerStyle::PRE_NORM, |b, x, layer| {
        let attended = b.attention(x, layer, style)?;
        let scanned = b.mamba_layer(x, layer, &mamba)?;
        Ok(b.graph.add(attended, scanned)?)
    })?;
    Ok(())
}
