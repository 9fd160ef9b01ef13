//! Encoders of Jina AI: JinaBert, whose scores have slopes instead of positions, and jina-embeddings v3.

use super::super::family::{Family, rule};
use super::super::import::Import;
use super::encoder_parts::{BERT_TENSORS, EPS, FUSED_TENSORS};
use crate::FormatError;

pub(crate) static JINA_BERT: Family = Family {
    names: &["JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"],
    arch: "jina-bert-v2",
    keys: &[EPS],
    tensors: &[
        BERT_TENSORS,
        &[
            rule("layers.mlp.wo", "ffn_down"),
            rule("layers.mlp.layernorm", "layer_output_norm"),
            // the names of jina-embeddings-v2-base-code, which also normalises queries and keys
            rule("layers.attention.self.layer_norm_q", "attn_q_norm"),
            rule("layers.attention.self.layer_norm_k", "attn_k_norm"),
            rule("layers.layer_norm_1", "attn_norm_2"),
            rule("layers.mlp.down_layer", "ffn_down"),
            rule("layers.layer_norm_2", "layer_output_norm"),
            rule("pooler.dense", "cls"),
            rule("classifier", "cls.output"),
        ],
    ],
    prepare: |import| {
        // the defaults of the model's own code are others
        for (key, want) in [("position_embedding_type", "alibi"), ("feed_forward_type", "geglu")] {
            if import.config.optional_str(key)? != Some(want) {
                return Err(import.config.wrong(key, want));
            }
        }
        import.want_text("emb_pooler", "mean")?;
        // the rerankers' own code has been seen with other slopes for the heads beyond a power of two
        let heads = import.config.usize("num_attention_heads")?;
        if import.is_classifier()? && !heads.is_power_of_two() {
            let want = "a power of two in a JinaBert reranker, whose slopes of other heads are not known";
            return Err(import.config.wrong("num_attention_heads", want));
        }
        (0..import.layers()?).try_for_each(|layer| import.split_gated(layer))?;
        import.set_types()?;
        import.set_classifier(&["pooler.", "cls."])
    },
};

pub(crate) static JINA_V3: Family = Family {
    names: &["JinaEmbeddingsV3Model"],
    arch: "jina-bert-v3",
    keys: &[EPS],
    tensors: &[FUSED_TENSORS],
    prepare: |import| {
        import.want_text("hidden_act", "gelu")?;
        import.set_types()?;
        import.set_classifier(&["pooler."])
    },
};

/// jina-embeddings v3 with the names in its own code, in which the adapters of tasks are part of the
/// weights: they are not used.
pub(super) fn prepare_v3(import: &mut Import) -> Result<(), FormatError> {
    import.set_arch("jina-bert-v3");
    import.want_text("emb_pooler", "mean")?;
    for key in ["truncate_dim", "rotary_emb_scale_base"] {
        if import.config.get(key).is_some() {
            return Err(import.config.wrong(key, "null"));
        }
    }
    let weights = std::mem::take(&mut import.weights);
    for (name, matrix) in weights {
        if name.ends_with(".lora_A") || name.ends_with(".lora_B") {
            continue;
        }
        let plain = name.strip_suffix(".original").map(|stem| stem.replace(".parametrizations.", "."));
        let plain = plain.unwrap_or(name);
        if import.weights.insert(plain.clone(), matrix).is_some() {
            return Err(FormatError::Tensor(plain, crate::TensorError::Duplicate));
        }
    }
    (JINA_V3.prepare)(import)
}

impl Import {
    /// Gate and up of JinaBert, which are one tensor; which of them is first depends on its name.
    fn split_gated(&mut self, layer: u64) -> Result<(), FormatError> {
        let (ff, width) = (self.config.usize("intermediate_size")?, self.config.usize("hidden_size")?);
        let name = |part: &str| format!("layers.{layer}.mlp.{part}.weight");
        let (name, parts) = match self.weights.get(&name("up_gated_layer")).is_some() {
            true => (name("up_gated_layer"), ["up", "gate"]),
            false => (name("gated_layers"), ["gate", "up"]),
        };
        let both = self.take_shaped(&name, &[ff.saturating_mul(2), width])?;
        for (start, part) in [0, ff as usize].into_iter().zip(parts) {
            self.put(format!("blk.{layer}.ffn_{part}.weight"), both.clone().row_range(start, ff as usize))?;
        }
        Ok(())
    }
}
