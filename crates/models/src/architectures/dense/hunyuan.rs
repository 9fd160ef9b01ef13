//! Hunyuan dense: each query and key head is normalised after it is rotated.

use tern_graph::RopeStyle;

use crate::layers::QkNorm;
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static HUNYUAN: Arch = Arch { name: "hunyuan-dense", build, synthetic: Synthetic::PLAIN };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::RotatedHeads)?;
    b.pre_norm_decoder(style)
}
