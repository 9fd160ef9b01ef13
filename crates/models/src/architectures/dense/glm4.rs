//! GLM 4: norms before and after attention and the MLP, half of each head rotated, gate and up in one tensor.

use tern_graph::RopeStyle;

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GLM4: Arch = Arch {
    name: "glm4",
    build,
    synthetic: Synthetic {
        tensors: &["attn_q.bias", "attn_k.bias", "attn_v.bias"],
        keys: &[("rope.dimension_count", Number::Integer(16))],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    b.decoder(&LayerStyle::BOTH_NORMS, |_| style)?;
    Ok(())
}
