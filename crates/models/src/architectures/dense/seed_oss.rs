//! Seed-OSS: biases on q, k and v; the norm before the MLP has another name.

use tern_graph::RopeStyle;

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static SEED_OSS: Arch = Arch { name: "seed_oss", build, synthetic: Synthetic::BIASED_HEADS };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    let layers =
        LayerStyle { norms_before: Some(["attn_norm", "post_attention_norm"]), ..LayerStyle::PRE_NORM };
    b.decoder(&layers, |_| style)?;
    Ok(())
}
