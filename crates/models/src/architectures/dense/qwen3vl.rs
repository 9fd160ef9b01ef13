//! Qwen 3 VL, its text models: Qwen 3, with and without experts. Positions have three parts, which are equal
//! for text; the first layers add features of images.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{LayerStyle, Leftover, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

/// Sections of the tiny shapes of tests.
static TINY: Synthetic = Synthetic {
    keys: &[("rope.dimension_sections", Number::Integers(&[12, 10, 10, 0]))],
    ..Synthetic::PLAIN
};

pub(crate) static QWEN3VL: Arch = Arch {
    name: "qwen3vl",
    build: |b| build(b, false),
    synthetic: Synthetic { extends: Some(&TINY), ..Synthetic::PLAIN },
};

pub(crate) static QWEN3VL_MOE: Arch = Arch {
    name: "qwen3vlmoe",
    build: |b| build(b, true),
    synthetic: Synthetic { extends: Some(&TINY), ..Synthetic::PLAIN },
};

fn build(b: &mut Build<'_>, experts: bool) -> Result<(), ModelError> {
    b.keys().usize("attention.key_length")?; // not width / heads in most sizes: required
    let base = b.keys().f32("rope.freq_base")?;
    let mut style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    if let Some(table) = style.table.filter(|_| b.sees) {
        style.table = Some(b.sections(table, Leftover::Sequence)?);
    }
    let layers = LayerStyle {
        experts: if experts { Some(b.expert_style(Gating::Softmax, true)?) } else { None },
        image_features: b.keys().optional_usize("n_deepstack_layers")?.unwrap_or(0),
        ..LayerStyle::PRE_NORM
    };
    b.decoder(&layers, |_| style)?;
    Ok(())
}
