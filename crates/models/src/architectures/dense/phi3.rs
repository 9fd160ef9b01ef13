//! Phi 3, 3.5 and 4: q, k and v in one tensor, gate and up in one, long and short rope factors.

use tern_graph::RopeStyle;

use crate::layers::QkNorm;
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static PHI3: Arch =
    Arch { name: "phi3", build, synthetic: Synthetic { tensors: &["attn_qkv.weight"], ..Synthetic::PLAIN } };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    // files have a window that the models are not run with
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    b.pre_norm_decoder(style)
}
