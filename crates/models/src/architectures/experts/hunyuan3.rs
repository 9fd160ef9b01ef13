//! Hy 3: norms of heads, plain layers first, then experts chosen with a bias and one that all tokens share.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{ExpertStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static HY_V3: Arch = Arch {
    name: "hy_v3",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight", "exp_probs_b.bias"],
        keys: &[
            ("leading_dense_block_count", Number::Integer(1)),
            ("expert_shared_count", Number::Integer(1)),
            ("expert_weights_scale", Number::Float(2.0)),
        ],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.skip_drafting_layers()?;
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let experts = b.expert_style(Gating::Sigmoid, true)?;
    // files need not have the keys: their tensors say it
    let first_layer = b.first_routed_layer();
    let shared = b.rows(&format!("blk.{first_layer}.ffn_up_shexp.weight")).unwrap_or(0);
    let experts = Some(ExpertStyle { first_layer, shared_ff: shared, ..experts });
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
