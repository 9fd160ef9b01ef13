//! EuroBERT and llama-embed: the layers of Llama in both directions.

use tern_graph::{Pooling, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static EUROBERT: Arch = Arch {
    name: "eurobert",
    build: |b| build(b, RopeStyle::Halves),
    synthetic: Synthetic { keys: &[("pooling_type", Number::Integer(1))], ..Synthetic::PLAIN },
};

pub(crate) static LLAMA_EMBED: Arch = Arch {
    name: "llama-embed",
    build: |b| build(b, RopeStyle::Interleaved), // GGUF writers reorder the rows of q and k for it
    synthetic: Synthetic {
        keys: &[("pooling_type", Number::Integer(1)), ("attention.causal", Number::Bool(false))],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>, rope: RopeStyle) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = AttentionStyle { causal: false, ..b.uniform_style(rope, base, QkNorm::None)? };
    b.encoder(&LayerStyle::PRE_NORM, |_| style, Pooling::Mean)
}
