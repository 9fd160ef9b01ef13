//! OLMoE: all query heads are normalised together, and so are all key heads; the weights of the chosen
//! experts are not renormalised.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static OLMOE: Arch = Arch { name: "olmoe", build, synthetic: Synthetic::PLAIN };

/// Rotation base of files without the key.
const ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().optional_f32("rope.freq_base")?.unwrap_or(ROPE_BASE);
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Rows)?;
    let experts = Some(b.expert_style(Gating::Softmax, false)?);
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
