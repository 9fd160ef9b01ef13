//! Qwen 3 VL, its text model: Qwen 3. Positions have three parts, which are equal for text, so that heads are rotated as there.

use tern_graph::RopeStyle;

use crate::blocks::QkNorm;
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static QWEN3VL: Arch = Arch {
    name: "qwen3vl",
    build,
    synthetic: Synthetic {
        keys: &[("rope.dimension_sections", Number::Integers(&[12, 10, 10, 0]))],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.keys().usize("attention.key_length")?; // not width / heads in most sizes: required
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    b.pre_norm_decoder(style)
}
