//! Qwen 2 and 2.5: biases on q, k and v.

use tern_graph::RopeStyle;

use crate::layers::QkNorm;
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static QWEN2: Arch = Arch { name: "qwen2", build, synthetic: Synthetic::BIASED_HEADS };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    b.pre_norm_decoder(style)
}
