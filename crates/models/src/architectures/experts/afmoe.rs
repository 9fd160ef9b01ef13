//! Trinity (AFMoE): scaled embeddings, norms before and after each half of a layer, a gate of attention, a
//! window in three of four layers, which alone are rotated, and experts after a few plain layers.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{AttentionStyle, Gate, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static AFMOE: Arch = Arch {
    name: "afmoe",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight", "exp_probs_b.bias"],
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("leading_dense_block_count", Number::Integer(1)),
            ("expert_shared_count", Number::Integer(2)),
            ("expert_gating_func", Number::Integer(2)),
            ("expert_weights_norm", Number::Bool(true)),
            ("expert_weights_scale", Number::Float(1.8)),
        ],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

/// Every fourth layer has full attention.
const PATTERN: usize = 4;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let style = AttentionStyle { gate: Some(Gate::Columns), ..style };
    let local = AttentionStyle { window: Some(b.window()?), ..style };
    let full = AttentionStyle { table: None, ..style };
    let is_local = b.local_layers(PATTERN)?;
    let layers = LayerStyle {
        embedding_scale: (b.config.width as f32).sqrt(),
        experts: Some(b.expert_style(Gating::Sigmoid, false)?),
        ..LayerStyle::BOTH_NORMS
    };
    b.decoder(&layers, |layer| if is_local[layer] { local } else { full })?;
    Ok(())
}
