//! What the families of encoders share: keys, names of tensors, ways of pooling, and steps of their imports.

use super::super::family::Kind::OptionalFloat;
use super::super::family::{Key, Rule, key, rule};
use super::super::import::Import;
use crate::{FormatError, Value};

/// The numbers of ways of pooling in GGUF files: the mean, the first token, the last one, a classifier.
pub(super) const MEAN: u64 = 1;
pub(super) const CLS: u64 = 2;
pub(super) const LAST: u64 = 3;
const RANK: u64 = 4;

pub(super) static EPS: &[Key] = &[key("layer_norm_eps", "attention.layer_norm_epsilon", OptionalFloat)];

pub(super) static BERT_TENSORS: &[Rule] = &[
    rule("embeddings.word_embeddings", "token_embd"),
    rule("embeddings.position_embeddings", "position_embd"),
    rule("embeddings.token_type_embeddings", "token_types"),
    rule("embeddings.LayerNorm", "token_embd_norm"),
    rule("layers.attention.self.query", "attn_q"),
    rule("layers.attention.self.key", "attn_k"),
    rule("layers.attention.self.value", "attn_v"),
    rule("layers.attention.output.dense", "attn_output"),
    rule("layers.attention.output.LayerNorm", "attn_output_norm"),
    rule("layers.intermediate.dense", "ffn_up"),
    rule("layers.output.dense", "ffn_down"),
    rule("layers.output.LayerNorm", "layer_output_norm"),
];

/// Names of tensors in which queries, keys and values are one, as in code for FlashAttention.
pub(super) static FUSED_TENSORS: &[Rule] = &[
    rule("embeddings.word_embeddings", "token_embd"),
    rule("embeddings.token_type_embeddings", "token_types"),
    rule("emb_ln", "token_embd_norm"),
    rule("layers.attn.Wqkv", "attn_qkv"),
    rule("layers.attn.out_proj", "attn_output"),
    rule("layers.mixer.Wqkv", "attn_qkv"),
    rule("layers.mixer.out_proj", "attn_output"),
    rule("layers.norm1", "attn_output_norm"),
    rule("layers.norm2", "layer_output_norm"),
    rule("layers.mlp.fc1", "ffn_up"),
    rule("layers.mlp.fc11", "ffn_up"),
    rule("layers.mlp.fc12", "ffn_gate"),
    rule("layers.mlp.fc2", "ffn_down"),
];

impl Import {
    /// Refuses a text other than this one.
    pub(super) fn want_text(&self, key: &str, want: &str) -> Result<(), FormatError> {
        match self.config.optional_str(key)? {
            Some(text) if text != want => Err(self.config.wrong(key, want)),
            _ => Ok(()),
        }
    }

    /// Refuses the other value.
    pub(super) fn want_bool(&self, key: &str, want: bool) -> Result<(), FormatError> {
        match self.config.optional_bool(key)? {
            Some(found) if found != want => Err(self.config.wrong(key, &want.to_string())),
            _ => Ok(()),
        }
    }

    /// The same for a number.
    pub(super) fn want_usize(&self, key: &str, want: u64) -> Result<(), FormatError> {
        match self.config.optional_usize(key)? {
            Some(found) if found != want => Err(self.config.wrong(key, &want.to_string())),
            _ => Ok(()),
        }
    }

    /// The number of types of tokens.
    pub(super) fn set_types(&mut self) -> Result<(), FormatError> {
        let types = self.config.optional_usize("type_vocab_size")?.unwrap_or(0);
        if types == 0 {
            self.drop_weights(&["embeddings.token_type_embeddings."]);
        } else {
            self.metadata.insert("tokenizer.ggml.token_type_count", Value::Uint(types));
        }
        Ok(())
    }

    /// Removes what a graph does not use.
    pub(super) fn drop_weights(&mut self, prefixes: &[&str]) {
        self.weights.retain(|name| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
    }

    pub(super) fn is_classifier(&self) -> Result<bool, FormatError> {
        let names = self.config.optional_strings("architectures")?.unwrap_or_default();
        Ok(names.first().is_some_and(|name| name.ends_with("ForSequenceClassification")))
    }

    /// A classifier with its labels; if the folder is no classifier, heads for other tasks are dropped.
    pub(super) fn set_classifier(&mut self, heads: &[&str]) -> Result<(), FormatError> {
        self.set("attention.causal", Value::Bool(false));
        if !self.is_classifier()? {
            self.drop_weights(heads);
            return Ok(());
        }
        self.set("pooling_type", Value::Uint(RANK));
        let labels = self.config.object("id2label")?.unwrap_or_default();
        let label = |id: usize| labels.optional_str(&id.to_string()).transpose();
        let labels: Vec<&str> = (0..).map_while(label).collect::<Result<_, _>>()?;
        if labels.len() > 1 {
            let labels = labels.into_iter().map(String::from).collect();
            self.set("classifier.output_labels", Value::Strings(labels));
        }
        Ok(())
    }
}
