//! Hunyuan with experts: each head is normalised after it is rotated, and all tokens share one expert.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{ExpertStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static HUNYUAN_MOE: Arch = Arch {
    name: "hunyuan-moe",
    build,
    synthetic: Synthetic { tensors: &["ffn_gate.weight", "ffn_gate_shexp.weight"], ..Synthetic::PLAIN },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::RotatedHeads)?;
    let experts = b.expert_style(Gating::Softmax, true)?;
    // files without the key have one of the size of the plain MLP
    let shared_ff = if experts.shared_ff > 0 { experts.shared_ff } else { b.config.ff };
    let experts = Some(ExpertStyle { shared_ff, ..experts });
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
