//! Llama 1 to 3, Mistral, SmolLM2, TinyLlama, Falcon3: the plain decoder. Mixtral: the same with experts.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Synthetic};

pub(crate) static LLAMA: Arch = Arch { name: "llama", build, synthetic: Synthetic::PLAIN };

/// Rotation base of files from before the key existed: Llama 1 and 2.
const FIRST_ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().optional_f32("rope.freq_base")?.unwrap_or(FIRST_ROPE_BASE);
    // GGUF writers reorder the rows of q and k for it
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    let experts = b.optional_expert_style(Gating::Softmax, true)?;
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |_| style)?;
    Ok(())
}
