//! LFM2, dense or with experts: most layers are a short convolution between two gates, the others attention.
//! Embedding models of it see the whole text, convolutions too.

use tern_graph::{Activation, Gating, Pooling, RopeStyle, Val};

use crate::layers::{AttentionStyle, LayerStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static LFM2: Arch = Arch {
    name: "lfm2",
    build,
    synthetic: Synthetic {
        tensors: &["ffn_gate.weight", "token_embd_norm.weight"],
        keys: &[
            ("attention.head_count_kv", Number::Integers(&[0, 2, 0, 2])),
            ("shortconv.l_cache", Number::Integer(3)),
        ],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

pub(crate) static LFM2_MOE: Arch = Arch {
    name: "lfm2moe",
    build,
    synthetic: Synthetic {
        extends: Some(&LFM2.synthetic),
        tensors: &["exp_probs_b.bias"],
        keys: &[
            ("leading_dense_block_count", Number::Integer(1)),
            ("expert_gating_func", Number::Integer(2)),
        ],
        ..Synthetic::PLAIN
    },
};

/// An embedding model: the row of the first token.
pub(crate) static EMBEDDING: Synthetic = Synthetic {
    extends: Some(&LFM2.synthetic),
    keys: &[("attention.causal", Number::Bool(false)), ("pooling_type", Number::Integer(2))],
    embedding_gain: 1.0,
    ..Synthetic::PLAIN
};

/// A narrow row per token. The first files of this kind are causal.
pub(crate) static COLBERT: Synthetic = Synthetic {
    extends: Some(&LFM2.synthetic),
    tensors: &["dense_2.weight"],
    keys: &[("embedding_length_out", Number::Integer(128))],
    embedding_gain: 1.0,
    ..Synthetic::PLAIN
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.reads_layers = true;
    let taps = b.keys().usize("shortconv.l_cache")?;
    let heads = b.heads_per_layer()?;
    let base = b.keys().f32("rope.freq_base")?;
    let causal = b.keys().optional_bool("attention.causal")?.unwrap_or(true);
    let style = AttentionStyle { causal, ..b.uniform_style(RopeStyle::Halves, base, QkNorm::Heads)? };
    let layers =
        LayerStyle { experts: b.optional_expert_style(Gating::Sigmoid, true)?, ..LayerStyle::PRE_NORM };
    let x = b.layers(&layers, |b, x, layer| match heads[layer] {
        None => b.short_conv(x, layer, taps, causal),
        shape => b.attention(x, layer, AttentionStyle { shape, ..style }),
    })?;
    if causal && !b.has("dense_2.weight") {
        return b.head(x).map(|_| ());
    }
    let x = b.last_norm(x)?;
    b.pooled(x, Pooling::None)
}

impl Build<'_> {
    /// A convolution of a gated value, gated again. `[tokens, width]`
    fn short_conv(&mut self, x: Val, layer: usize, taps: usize, causal: bool) -> Result<Val, ModelError> {
        let (width, name) = (self.config.width, |part: &str| format!("blk.{layer}.shortconv.{part}"));
        let all = self.linear(x, &name("in_proj"), 3 * width)?; // [gate, gate after, value]
        let [before, after, value] = [0, 1, 2].map(|i| self.graph.columns(all, i * width, width));
        let x = self.graph.gated(before?, value?, Activation::Product)?;
        let conv = self.graph.matrix(name("conv.weight"), width, taps)?;
        let x =
            if causal { self.graph.conv(x, conv, None, false)? } else { self.graph.centred_conv(x, conv)? };
        let x = self.graph.gated(after?, x, Activation::Product)?;
        self.linear(x, &name("out_proj"), width)
    }
}
