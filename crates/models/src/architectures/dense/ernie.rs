//! ERNIE 4.5, dense: the plain decoder.

use tern_graph::RopeStyle;

use crate::layers::QkNorm;
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static ERNIE: Arch = Arch { name: "ernie4_5", build, synthetic: Synthetic::PLAIN };

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    b.pre_norm_decoder(style)
}
