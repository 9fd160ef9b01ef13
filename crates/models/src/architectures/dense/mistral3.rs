//! Ministral 3 and Mistral Small 3: Llama, with scores that grow with the position.

use tern_graph::RopeStyle;

use crate::layers::{AttentionStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static MISTRAL3: Arch = Arch {
    name: "mistral3",
    build,
    synthetic: Synthetic {
        keys: &[
            ("attention.temperature_scale", Number::Float(0.9)),
            ("rope.scaling.original_context_length", Number::Integer(8)),
            ("rope.scaling.yarn_beta_fast", Number::Float(24.0)),
            ("rope.scaling.yarn_beta_slow", Number::Float(1.5)),
            ("rope.scaling.yarn_log_multiplier", Number::Float(1.0)),
        ],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let style = b.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
    let temperature = b.temperature()?;
    b.pre_norm_decoder(AttentionStyle { temperature, ..style })
}
