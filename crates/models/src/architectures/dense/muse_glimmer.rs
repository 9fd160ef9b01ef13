//! Muse Glimmer: normalised embeddings, norms before and after each half of a layer with two epsilons, a gate
//! of attention, a window in three of four layers, which alone are rotated, and a factor and a soft cap of
//! the logits.

use tern_graph::RopeStyle;

use crate::layers::{AttentionStyle, Gate, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static MUSE_GLIMMER: Arch = Arch {
    name: "muse-glimmer",
    build,
    synthetic: Synthetic {
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("logit_scale", Number::Float(0.6)),
            ("final_logit_softcapping", Number::Float(20.0)),
        ],
        ..Synthetic::PLAIN
    },
};

/// Every fourth layer has full attention.
const PATTERN: usize = 4;
/// Epsilon of the norms after attention and the MLP in files without the key, as all of llama.cpp's are.
const EPS_AFTER: f32 = 1e-8;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::Heads)?;
    let style = AttentionStyle { gate: Some(Gate::Columns), ..style };
    let local = AttentionStyle { window: Some(b.window()?), ..style };
    let full = AttentionStyle { table: None, ..style };
    let is_local = b.local_layers(PATTERN)?;
    let eps = b.keys().optional_f32("attention.post_norm_rms_epsilon")?.unwrap_or(EPS_AFTER);
    let layers = LayerStyle { norms_embeddings: true, eps_after: Some(eps), ..LayerStyle::BOTH_NORMS };
    let logits = b.decoder(&layers, |layer| if is_local[layer] { local } else { full })?;
    let logits = b.scale_logits(logits)?;
    b.softcap_logits(logits)
}
