//! EXAONE 4 with experts (K-EXAONE): a window in three of four layers, and only they are rotated; plain
//! layers first, then experts and one that all tokens share.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static EXAONE_MOE: Arch = Arch {
    name: "exaone-moe",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight", "exp_probs_b.bias"],
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("leading_dense_block_count", Number::Integer(1)),
            ("expert_shared_count", Number::Integer(1)),
            ("expert_gating_func", Number::Integer(2)),
            ("expert_weights_norm", Number::Bool(true)),
            ("expert_weights_scale", Number::Float(2.5)),
        ],
        ..Synthetic::PLAIN
    },
};

/// Every fourth layer has full attention.
const PATTERN: usize = 4;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.skip_drafting_layers()?;
    let base = b.keys().f32("rope.freq_base")?;
    let rotated = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let local = AttentionStyle { window: Some(b.window()?), ..rotated };
    let full = AttentionStyle { table: None, ..rotated };
    let experts = Some(b.expert_style(Gating::Sigmoid, true)?);
    let layers = LayerStyle { experts, ..LayerStyle::PRE_NORM };
    b.decoder(&layers, |layer| if ends_run(layer, PATTERN) { full } else { local })?;
    Ok(())
}
