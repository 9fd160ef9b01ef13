//! OLMo 2 and 3: norms after attention and the MLP, and of all heads together; OLMo 3 has a window
//! in three of four layers.

use tern_graph::RopeStyle;

use crate::layers::{AttentionStyle, LayerStyle, QkNorm, ends_run};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static OLMO2: Arch = Arch {
    name: "olmo2",
    build,
    synthetic: Synthetic { keys: &[("attention.sliding_window", Number::Integer(8))], ..Synthetic::PLAIN },
};

/// Every fourth layer has full attention.
const PATTERN: usize = 4;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let base = b.keys().f32("rope.freq_base")?;
    let full = b.uniform_style(RopeStyle::Halves, base, QkNorm::Rows)?;
    let window = b.keys().optional_usize("attention.sliding_window")?.filter(|window| *window > 0);
    let local_base = b.keys().optional_f32("rope.freq_base_swa")?.unwrap_or(base);
    let local = match window {
        // local layers are rotated without scaling
        Some(_) => {
            let table = b.plain_rope_table(local_base, b.config.rope_dims)?;
            AttentionStyle { table: Some(table), window, ..full }
        }
        None => full,
    };
    b.decoder(&LayerStyle::POST_NORM, |layer| if ends_run(layer, PATTERN) { full } else { local })?;
    Ok(())
}
