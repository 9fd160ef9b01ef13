//! Flint: a sink per head, a window in most layers, which alone are rotated, and after a few plain layers
//! experts and one that all tokens share.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static FLINT: Arch = Arch {
    name: "flint",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight"],
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("attention.sliding_window_pattern", Number::PerLayer(&[false, true])),
            ("leading_dense_block_count", Number::Integer(1)),
            ("expert_shared_feed_forward_length", Number::Integer(320)),
        ],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let local = AttentionStyle { sinks: true, window: Some(b.window()?), ..style };
    let full = AttentionStyle { sinks: true, table: None, ..style };
    let is_local = b.listed_local_layers()?;
    let experts = Some(b.expert_style(Gating::Sigmoid, true)?);
    let layers = LayerStyle { experts, ..LayerStyle::PRE_NORM };
    b.decoder(&layers, |layer| if is_local[layer] { local } else { full })?;
    Ok(())
}
