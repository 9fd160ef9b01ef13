//! ERNIE 4.5 with experts: plain layers first, then experts chosen with a bias, and some that all tokens
//! share.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static ERNIE_MOE: Arch = Arch {
    name: "ernie4_5-moe",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight", "exp_probs_b.bias"],
        keys: &[
            ("leading_dense_block_count", Number::Integer(1)),
            ("interleave_moe_layer_step", Number::Integer(1)),
            ("expert_shared_count", Number::Integer(2)),
        ],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let key = "interleave_moe_layer_step";
    let step = b.keys().optional_usize(key)?.unwrap_or(1);
    if step != 1 {
        return Err(ModelError::value(b.keys().key(key), step, "1"));
    }
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    let experts = Some(b.expert_style(Gating::Softmax, true)?);
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
