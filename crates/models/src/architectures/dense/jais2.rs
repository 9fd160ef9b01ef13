//! Jais 2: layer norms, biases everywhere, and a squared ReLU without a gate in the MLP.

use tern_graph::RopeStyle;

use super::starcoder2::STARCODER2;
use crate::layers::{LayerStyle, QkNorm, Ungated};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static JAIS2: Arch = Arch {
    name: "jais2",
    build,
    synthetic: Synthetic {
        extends: Some(&STARCODER2.synthetic),
        tensors: &[],
        has_layer_norms: true,
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.layer_norms = true;
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    b.decoder(&LayerStyle { ungated: Some(Ungated::Relu2), ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
