//! Qwen 3 with experts: 30B-A3B, 235B-A22B, Coder.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static QWEN3MOE: Arch = Arch { name: "qwen3moe", build, synthetic: Synthetic::PLAIN };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.keys().usize("attention.key_length")?; // not width / heads: required
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let experts = Some(b.expert_style(Gating::Softmax, true)?);
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
