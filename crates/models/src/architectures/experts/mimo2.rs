//! MiMo V2: layers with a window have more key heads, a sink per head and another rotation base; values are
//! scaled, part of each head is rotated, and experts are chosen with a bias.

use tern_graph::{Gating, RopeStyle};

use crate::layers::{AttentionStyle, ExpertStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static MIMO2: Arch = Arch {
    name: "mimo2",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "ffn_gate_inp.weight", "exp_probs_b.bias", "attn_sinks.weight"],
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("attention.sliding_window_pattern", Number::PerLayer(&[false, true])),
            ("attention.head_count_kv", Number::Integers(&[1, 2, 1, 2])),
            ("attention.value_length", Number::Integer(32)),
            ("attention.value_scale", Number::Float(0.7)),
            ("rope.dimension_count", Number::Integer(16)),
            ("rope.freq_base_swa", Number::Float(20_000.0)),
        ],
        ..Synthetic::PLAIN
    },
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.skip_drafting_layers()?;
    b.reads_layers = true;
    let (layers, window) = (b.config.layers, b.window()?);
    let base = b.keys().f32("rope.freq_base")?;
    let full = b.uniform_style(RopeStyle::Halves, base, QkNorm::None)?;
    let local_base = b.keys().optional_f32("rope.freq_base_swa")?.unwrap_or(base);
    let local_table = Some(b.rope_table(local_base)?);
    let is_local = b.local_layers(layers)?;
    let value_scale = b.keys().optional_f32("attention.value_scale")?.filter(|s| *s != 0.0).unwrap_or(1.0);
    let mut styles = Vec::with_capacity(layers);
    for (layer, shape) in b.heads_per_layer()?.into_iter().enumerate() {
        let Some(shape) = shape else {
            let (key, want) = (b.keys().key("attention.head_count_kv"), "1 or more".into());
            return Err(ModelError::LayerValue { key, layer, value: 0, want });
        };
        let sinks = b.has(&format!("blk.{layer}.attn_sinks.weight"));
        let style = AttentionStyle { shape: Some(shape), sinks, value_scale, ..full };
        let local = AttentionStyle { table: local_table, window: Some(window), ..style };
        styles.push(if is_local[layer] { local } else { style });
    }
    let experts = b.expert_style(Gating::Sigmoid, true)?;
    let experts = Some(ExpertStyle { first_layer: b.first_routed_layer(), ..experts });
    b.decoder(&LayerStyle { experts, ..LayerStyle::PRE_NORM }, |layer| styles[layer])?;
    Ok(())
}
