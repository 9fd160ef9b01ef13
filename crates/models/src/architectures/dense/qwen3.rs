//! Qwen 3 and Bonsai: each query and key head is normalised, and heads have their own width.

use tern_graph::RopeStyle;

use crate::layers::QkNorm;
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static QWEN3: Arch = Arch { name: "qwen3", build, synthetic: Synthetic::PLAIN };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.keys().usize("attention.key_length")?; // not width / heads in most sizes: required
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    b.pre_norm_decoder(style)
}
