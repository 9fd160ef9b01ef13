//! EXAONE 4: norms after attention and the MLP, and of heads; the 32B has a window in three of four layers,
//! and only they are rotated.

use tern_graph::RopeStyle;

use crate::layers::{AttentionStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static EXAONE4: Arch = Arch {
    name: "exaone4",
    build,
    synthetic: Synthetic { keys: &[("attention.sliding_window", Number::Integer(8))], ..Synthetic::PLAIN },
};

/// Layers of the 32B, the one size with local layers.
const LAYERS_32B: usize = 64;
/// Every fourth layer has full attention.
const PATTERN: usize = 4;
/// The window of files without the key.
const WINDOW: usize = 4096;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let plain = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let window = b.keys().optional_usize("attention.sliding_window")?.unwrap_or(WINDOW);
    let has_local = b.config.layers == LAYERS_32B && window > 0;
    b.decoder(&LayerStyle::POST_NORM, |layer| match ends_run(layer, PATTERN) {
        _ if !has_local => plain,
        true => AttentionStyle { table: None, ..plain },
        false => AttentionStyle { window: Some(window), ..plain },
    })?;
    Ok(())
}
