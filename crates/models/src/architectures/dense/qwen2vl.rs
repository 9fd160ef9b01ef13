//! Qwen 2 VL and 2.5 VL, their text models: Qwen 2. Positions have three parts, which are equal for text.

use tern_graph::RopeStyle;

use crate::layers::QkNorm;
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static QWEN2VL: Arch = Arch {
    name: "qwen2vl",
    build,
    synthetic: Synthetic {
        extends: Some(&Synthetic::BIASED_HEADS),
        keys: &[("rope.dimension_sections", Number::Integers(&[8, 12, 12, 0]))],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let mut style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    if let Some(table) = style.table.filter(|_| b.sees) {
        style.table = Some(b.sections_in_order(table)?);
    }
    b.pre_norm_decoder(style)
}
