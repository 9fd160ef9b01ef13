//! Encoders: BERT and its kin, ModernBERT, EuroBERT, EmbeddingGemma.

use super::super::family::Kind::{Float, OptionalFloat, OptionalText, OptionalUint};
use super::super::family::{Family, Key, Rule, key, rule};
use super::super::import::Import;
use super::gemma;
use crate::{FormatError, Value};

/// The number of a classifier among the ways of pooling in GGUF files.
const RANK: u64 = 4;

static EPS: &[Key] = &[key("layer_norm_eps", "attention.layer_norm_epsilon", OptionalFloat)];

static BERT_TENSORS: &[Rule] = &[
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

pub(crate) static BERT: Family = Family {
    names: &["BertModel", "BertForMaskedLM", "BertForSequenceClassification"],
    arch: "bert",
    keys: &[EPS],
    tensors: &[BERT_TENSORS, &[rule("pooler.dense", "cls"), rule("classifier", "cls.output")]],
    prepare: |import| {
        import.check_bert()?;
        import.set_classifier(&["pooler.", "cls."])
    },
};

pub(crate) static XLM_ROBERTA: Family = Family {
    names: &[
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
    ],
    arch: "bert",
    keys: &[EPS],
    tensors: &[BERT_TENSORS, &[rule("classifier.dense", "cls"), rule("classifier.out_proj", "cls.output")]],
    prepare: |import| {
        import.check_bert()?;
        import.cut_positions()?;
        import.drop_weights(&["pooler."]);
        import.set_classifier(&["lm_head."])
    },
};

/// Names of the tensors of encoders with rotated heads.
static ROTATED_TENSORS: &[Rule] = &[
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

pub(crate) static NOMIC_BERT: Family = Family {
    names: &["NomicBertModel"],
    arch: "nomic-bert",
    keys: &[
        EPS,
        &[
            // the names of the model's own code, which most folders have
            key("n_embd", "embedding_length", OptionalUint),
            key("n_layer", "block_count", OptionalUint),
            key("n_inner", "feed_forward_length", OptionalUint),
            key("n_head", "attention.head_count", OptionalUint),
            key("n_positions", "context_length", OptionalUint),
            key("layer_norm_epsilon", "attention.layer_norm_epsilon", OptionalFloat),
            key("rotary_emb_base", "rope.freq_base", OptionalFloat),
        ],
    ],
    tensors: &[ROTATED_TENSORS],
    prepare: |import| {
        import.want_text("activation_function", "swiglu")?;
        import.want_text("hidden_act", "silu")?;
        for key in ["prenorm", "use_rms_norm", "rotary_emb_interleaved"] {
            if import.config.optional_bool(key)? == Some(true) {
                return Err(import.config.wrong(key, "false"));
            }
        }
        if import.config.optional_usize("num_experts")?.unwrap_or(0) > 0 {
            return Err(import.config.wrong("num_experts", "0: experts are read from GGUF files only"));
        }
        if import.config.optional_f64("rotary_scaling_factor")?.is_some() {
            return Err(import.config.wrong("rotary_scaling_factor", "null"));
        }
        if import.config.optional_f64("rotary_emb_fraction")?.is_some_and(|part| part != 1.0) {
            return Err(import.config.wrong("rotary_emb_fraction", "1"));
        }
        if let (Some(width), Some(heads)) =
            (import.config.optional_usize("n_embd")?, import.config.optional_usize("n_head")?)
        {
            import.set("rope.dimension_count", Value::Uint(width / heads.max(1)));
        }
        import.set_types()?;
        import.set_classifier(&["pooler.", "cls."])
    },
};

pub(crate) static JINA_V3: Family = Family {
    names: &["JinaEmbeddingsV3Model"],
    arch: "jina-bert-v3",
    keys: &[EPS],
    tensors: &[ROTATED_TENSORS],
    prepare: |import| {
        import.want_text("hidden_act", "gelu")?;
        import.set_types()?;
        import.set_classifier(&["pooler."])
    },
};

/// Layers of ModernBERT between two with full attention, and that one.
const MODERN_RUN: u64 = 3;

pub(crate) static MODERN_BERT: Family = Family {
    names: &["ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"],
    arch: "modern-bert",
    keys: &[&[
        key("norm_eps", "attention.layer_norm_epsilon", Float),
        key("hidden_activation", "hidden_activation", OptionalText),
        key("global_rope_theta", "rope.freq_base", OptionalFloat),
        key("local_rope_theta", "rope.freq_base_swa", OptionalFloat),
        key("local_attention", "attention.sliding_window", OptionalUint),
    ]],
    tensors: &[&[
        rule("embeddings.tok_embeddings", "token_embd"),
        rule("embeddings.norm", "token_embd_norm"),
        rule("layers.attn.Wqkv", "attn_qkv"),
        rule("layers.attn.Wo", "attn_output"),
        rule("layers.attn_norm", "attn_norm"),
        rule("layers.mlp.Wi", "ffn_up"),
        rule("layers.mlp.Wo", "ffn_down"),
        rule("layers.mlp_norm", "ffn_norm"),
        rule("final_norm", "output_norm"),
        rule("head.dense", "cls"),
        rule("head.norm", "cls.norm"),
        rule("classifier", "cls.output"),
    ]],
    prepare: |import| {
        let run = import.config.optional_usize("global_attn_every_n_layers")?.unwrap_or(MODERN_RUN).max(1);
        let listed = import.config.optional_strings("layer_types")?.unwrap_or_default();
        if listed.iter().zip(0..).any(|(kind, layer)| (*kind == "full_attention") != (layer % run == 0)) {
            let want = format!("full_attention in layer 0 and every {run} layers after it");
            return Err(import.config.wrong("layer_types", &want));
        }
        import.set("attention.sliding_window_pattern", Value::Uint(run));
        import.set_classifier(&["head.", "decoder."])?;
        if import.is_classifier()? {
            import.want_text("classifier_pooling", "mean")?;
            import.want_text("classifier_activation", "gelu")?;
        }
        Ok(())
    },
};

pub(crate) static EUROBERT: Family = Family {
    names: &["EuroBertModel", "EuroBertForMaskedLM"],
    arch: "eurobert",
    keys: &[],
    tensors: &[],
    prepare: |import| {
        import.want_text("hidden_act", "silu")?;
        import.set_classifier(&["lm_head."])
    },
};

pub(crate) static GEMMA_EMBEDDING: Family = Family {
    names: &["Gemma3TextModel"],
    arch: "gemma-embedding",
    keys: &[],
    tensors: &[&gemma::NORMS],
    prepare: |import| {
        if import.config.optional_bool("use_bidirectional_attention")? != Some(true) {
            return Err(import.config.wrong("use_bidirectional_attention", "true"));
        }
        import.check_scale(0)?;
        import.set("attention.causal", Value::Bool(false));
        import.set_window(6)
    },
};

impl Import {
    /// Refuses a text other than this one.
    fn want_text(&self, key: &str, want: &str) -> Result<(), FormatError> {
        match self.config.optional_str(key)? {
            Some(text) if text != want => Err(self.config.wrong(key, want)),
            _ => Ok(()),
        }
    }

    /// What the graph of BERT has.
    fn check_bert(&mut self) -> Result<(), FormatError> {
        self.want_text("hidden_act", "gelu")?;
        self.want_text("position_embedding_type", "absolute")?;
        self.set_types()
    }

    /// The number of types of tokens.
    fn set_types(&mut self) -> Result<(), FormatError> {
        let types = self.config.optional_usize("type_vocab_size")?.unwrap_or(0);
        if types == 0 {
            self.drop_weights(&["embeddings.token_type_embeddings."]);
        } else {
            self.metadata.insert("tokenizer.ggml.token_type_count", Value::Uint(types));
        }
        Ok(())
    }

    /// Removes what a graph does not use.
    fn drop_weights(&mut self, prefixes: &[&str]) {
        self.weights.retain(|name, _| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
    }

    fn is_classifier(&self) -> Result<bool, FormatError> {
        let names = self.config.optional_strings("architectures")?.unwrap_or_default();
        Ok(names.first().is_some_and(|name| name.ends_with("ForSequenceClassification")))
    }

    /// A classifier with its labels; if the folder is no classifier, heads for other tasks are dropped.
    fn set_classifier(&mut self, heads: &[&str]) -> Result<(), FormatError> {
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

    /// The rows of positions before the first one, which RoBERTa never uses: they are those of padding.
    fn cut_positions(&mut self) -> Result<(), FormatError> {
        let name = "embeddings.position_embeddings.weight";
        let first = self.config.optional_usize("pad_token_id")?.unwrap_or(1).saturating_add(1);
        let table = self.take(name)?;
        let rows = self.config.usize("max_position_embeddings")?;
        if table.shape.len() != 2 || table.shape[0] != rows || first >= rows {
            return Err(super::super::import::shape_error(name, &[rows], &table.shape));
        }
        let kept = rows - first;
        self.set("context_length", Value::Uint(kept));
        self.put("position_embd.weight".into(), table.row_range(first as usize, kept as usize))
    }
}
