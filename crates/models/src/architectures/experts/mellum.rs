//! Mellum 2: Qwen 3 with experts, and a window in three of four layers, which are rotated without scaling.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static MELLUM: Arch = Arch {
    name: "mellum",
    build,
    synthetic: Synthetic {
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("rope.freq_base_swa", Number::Float(20_000.0)),
        ],
        ..Synthetic::PLAIN
    },
};

/// Every fourth layer has full attention.
const PATTERN: usize = 4;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.skip_drafting_layers()?;
    let base = b.keys().f32("rope.freq_base")?;
    let full = b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)?;
    let window = b.keys().optional_usize("attention.sliding_window")?.filter(|window| *window > 0);
    let local = match window {
        Some(_) => {
            let base = b.keys().optional_f32("rope.freq_base_swa")?.unwrap_or(base);
            let table = b.plain_rope_table(base, b.config.rope_dims)?;
            AttentionStyle { table: Some(table), window, ..full }
        }
        None => full,
    };
    let experts = Some(b.expert_style(Gating::Softmax, true)?);
    let layers = LayerStyle { experts, ..LayerStyle::PRE_NORM };
    b.decoder(&layers, |layer| if ends_run(layer, PATTERN) { full } else { local })?;
    Ok(())
}
