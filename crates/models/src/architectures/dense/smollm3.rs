//! SmolLM3: heads of every fourth layer are not rotated.

use tern_graph::RopeStyle;

use crate::layers::{AttentionStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static SMOLLM3: Arch = Arch { name: "smollm3", build, synthetic: Synthetic::PLAIN };

/// Every fourth layer has no rotation.
const PATTERN: usize = 4;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let rotated = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    let plain = AttentionStyle { table: None, ..rotated };
    b.decoder(&LayerStyle::PRE_NORM, |layer| if ends_run(layer, PATTERN) { plain } else { rotated })?;
    Ok(())
}
