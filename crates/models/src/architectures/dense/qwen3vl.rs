//! Qwen 3 VL, its text model: Qwen 3. Positions have three parts, which are equal for text, so that
//! heads are rotated as there.

use crate::{Arch, Number, Synthetic};

pub(crate) static QWEN3VL: Arch = Arch {
    name: "qwen3vl",
    build: super::qwen3::build,
    synthetic: Synthetic {
        keys: &[("rope.dimension_sections", Number::Integers(&[12, 10, 10, 0]))],
        ..Synthetic::PLAIN
    },
};
