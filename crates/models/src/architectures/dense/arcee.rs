//! Arcee (AFM 4.5B): the plain decoder with a squared ReLU and no gate in its MLP.

use tern_graph::RopeStyle;

use crate::layers::{LayerStyle, QkNorm, Ungated};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static ARCEE: Arch =
    Arch { name: "arcee", build, synthetic: Synthetic { tensors: &[], ..Synthetic::PLAIN } };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    b.decoder(&LayerStyle { ungated: Some(Ungated::Relu2), ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
