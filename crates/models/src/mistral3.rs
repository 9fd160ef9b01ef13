//! Ministral 3 and Mistral Small 3: Llama, with scores that grow with the position.

use tern_graph::{RopeStyle, Temperature};

use crate::blocks::{AttentionStyle, QkNorm};
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
    let scale = b.keys().optional_f32("attention.temperature_scale")?.filter(|scale| *scale != 0.0);
    let temperature = match scale {
        Some(scale) => {
            let key = "rope.scaling.original_context_length";
            let length = b.keys().usize(key)?;
            if length == 0 || !scale.is_finite() {
                let (key, scale_key) = (b.keys().key(key), b.keys().key("attention.temperature_scale"));
                let text =
                    format!("`{key}` is {length} and `{scale_key}` is {scale}: want 1 or more, and a number");
                return Err(ModelError::Unsupported(text));
            }
            Some(Temperature { scale, length })
        }
        None => None,
    };
    b.pre_norm_decoder(AttentionStyle { temperature, ..style })
}
