//! MiniMax M2: norms as in OLMoE, part of each head rotated, and experts chosen with a bias.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static MINIMAX_M2: Arch = Arch {
    name: "minimax-m2",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "exp_probs_b.bias"],
        keys: &[("rope.dimension_count", Number::Integer(16)), ("expert_gating_func", Number::Integer(2))],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Rows)?;
    let experts = Some(b.expert_style(Gating::Sigmoid, true)?);
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
