//! Command R and Command R7B: attention and the MLP read the same layer norm, and logits have a factor;
//! Command R7B has a window in three of four layers, and only they are rotated.

use tern_graph::RopeStyle;

use crate::layers::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static COMMAND_R: Arch = Arch {
    name: "command-r",
    build: |b| {
        let style = attention(b)?;
        decoder(b, |_| style)
    },
    synthetic: Synthetic {
        keys: &[("logit_scale", Number::Float(0.4))],
        has_layer_norms: true,
        ..Synthetic::PLAIN
    },
};

pub(crate) static COHERE2: Arch = Arch {
    name: "cohere2",
    build: |b| {
        let full = attention(b)?;
        let local = AttentionStyle { window: Some(b.window()?), ..full };
        let full = AttentionStyle { table: None, ..full };
        let is_local = b.local_layers(PATTERN)?;
        decoder(b, |layer| if is_local[layer] { local } else { full })
    },
    synthetic: Synthetic {
        extends: Some(&COMMAND_R.synthetic),
        keys: &[("attention.sliding_window", Number::Integer(8))],
        has_layer_norms: true,
        ..Synthetic::PLAIN
    },
};

/// Every fourth layer has full attention.
const PATTERN: usize = 4;
/// Rotation base of files without the key.
const ROPE_BASE: f32 = 10_000.0;

fn attention(b: &mut Build<'_>) -> Result<AttentionStyle, ModelError> {
    let base = b.keys().optional_f32("rope.freq_base")?.unwrap_or(ROPE_BASE);
    b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)
}

fn decoder(b: &mut Build<'_>, attention: impl Fn(usize) -> AttentionStyle) -> Result<(), ModelError> {
    b.layer_norms = true;
    let layers = LayerStyle { parallel: true, ..LayerStyle::PRE_NORM };
    let logits = b.decoder(&layers, attention)?;
    b.scale_logits(logits)?;
    Ok(())
}
