//! Granite 3 and 4, without state, dense or with experts: factors on embeddings,
//! scores, residuals and logits; some have a window and a sink per head.

use tern_graph::{Gating, RopeStyle, Val};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GRANITE: Arch = Arch {
    name: "granite",
    build,
    synthetic: Synthetic {
        keys: &[
            ("embedding_scale", Number::Float(2.0)),
            ("residual_scale", Number::Float(1.7)),
            ("attention.scale", Number::Float(0.3)),
            ("logit_scale", Number::Float(0.5)),
        ],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

pub(crate) static GRANITE_MOE: Arch = Arch {
    name: "granitemoe",
    build,
    synthetic: Synthetic {
        extends: Some(&GRANITE.synthetic),
        tensors: &["ffn_gate_shexp.weight"],
        keys: &[("expert_shared_feed_forward_length", Number::Integer(320))],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

pub(crate) static GRANITE_SWA: Arch = Arch {
    name: "granite_swa",
    build: build_local,
    synthetic: Synthetic {
        extends: Some(&GRANITE.synthetic),
        tensors: &["attn_sinks.weight"],
        keys: &[
            ("attention.sliding_window", Number::Integer(8)),
            ("attention.sliding_window_pattern", Number::PerLayer(&[false, true, true, true])),
            ("attention.rope_pattern", Number::PerLayer(&[false, true, true, true])),
        ],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

/// Rotation base of files without the key.
const ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let style = b.granite_attention()?;
    b.granite_decoder(|b, x, layer| b.attention(x, layer, style))
}

fn build_local(b: &mut Build<'_>) -> Result<(), ModelError> {
    let layers = b.config.layers;
    let full = AttentionStyle { sinks: true, ..b.granite_attention()? };
    let local = AttentionStyle { window: Some(b.window()?), ..full };
    let is_local = b.listed_local_layers()?;
    let rotated = b.keys().bool_per_layer("attention.rope_pattern", layers)?;
    let is_rotated = |layer: usize| rotated.as_ref().is_none_or(|rotated| rotated[layer]);
    b.granite_decoder(|b, x, layer| {
        let style = if is_local[layer] { local } else { full };
        let table = style.table.filter(|_| is_rotated(layer));
        b.attention(x, layer, AttentionStyle { table, ..style })
    })
}

impl Build<'_> {
    /// Attention, rotated unless the file says otherwise.
    pub(crate) fn granite_attention(&mut self) -> Result<AttentionStyle, ModelError> {
        let base = self.keys().optional_f32("rope.freq_base")?.unwrap_or(ROPE_BASE);
        let style = self.uniform_style(RopeStyle::Interleaved, base, QkNorm::None)?;
        // files use this key to say that heads are not rotated
        let rotated = self.keys().optional_bool("rope.scaling.finetuned")?.unwrap_or(true);
        Ok(AttentionStyle { table: style.table.filter(|_| rotated), ..style })
    }

    /// A decoder with the factors of Granite, and experts if the file has some.
    pub(crate) fn granite_decoder(
        &mut self,
        mixer: impl Fn(&mut Self, Val, usize) -> Result<Val, ModelError>,
    ) -> Result<(), ModelError> {
        let experts = self.optional_expert_style(Gating::Softmax, true)?;
        let factor = |key: &str| -> Result<f32, ModelError> {
            Ok(self.keys().optional_f32(key)?.filter(|x| *x != 0.0).unwrap_or(1.0))
        };
        let layers = LayerStyle {
            embedding_scale: factor("embedding_scale")?,
            residual_scale: factor("residual_scale")?,
            experts,
            ..LayerStyle::PRE_NORM
        };
        let divisor = self.keys().f32("logit_scale")?;
        if !(divisor.is_finite() && divisor != 0.0) {
            return Err(ModelError::value(self.keys().key("logit_scale"), divisor, "a number that is not 0"));
        }
        let logits = self.decoder_of(&layers, mixer)?;
        self.graph.scale(logits, 1.0 / divisor);
        Ok(())
    }
}
