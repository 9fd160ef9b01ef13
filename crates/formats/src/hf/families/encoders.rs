//! Encoders: BERT and its kin, ModernBERT, EuroBERT, EmbeddingGemma, Llama in both directions.

use super::super::family::Kind::{Float, OptionalFloat, OptionalText, OptionalUint, Uint};
use super::super::family::{Family, PAIRED_HEADS, key, rule};
use super::super::import::Import;
use super::dense::limit_context;
use super::encoder_parts::{BERT_TENSORS, CLS, EPS, FUSED_TENSORS, LAST, MEAN};
use super::{gemma, jina};
use crate::{FormatError, Value};

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
        "CamembertModel",
        "CamembertForMaskedLM",
        "CamembertForSequenceClassification",
    ],
    arch: "bert",
    keys: &[EPS, &[key("rotary_emb_base", "rope.freq_base", OptionalFloat)]],
    tensors: &[
        BERT_TENSORS,
        FUSED_TENSORS,
        &[rule("classifier.dense", "cls"), rule("classifier.out_proj", "cls.output")],
    ],
    prepare: |import| {
        if import.config.optional_str("position_embedding_type")? == Some("rotary") {
            return jina::prepare_v3(import);
        }
        import.check_bert()?;
        import.cut_positions()?;
        import.drop_weights(&["pooler."]);
        import.set_classifier(&["lm_head."])
    },
};

pub(crate) static DISTILBERT: Family = Family {
    names: &["DistilBertModel", "DistilBertForMaskedLM"],
    arch: "bert",
    keys: &[&[
        key("dim", "embedding_length", Uint),
        key("n_layers", "block_count", Uint),
        key("hidden_dim", "feed_forward_length", Uint),
        key("n_heads", "attention.head_count", Uint),
    ]],
    tensors: &[
        BERT_TENSORS,
        &[
            rule("layers.attention.q_lin", "attn_q"),
            rule("layers.attention.k_lin", "attn_k"),
            rule("layers.attention.v_lin", "attn_v"),
            rule("layers.attention.out_lin", "attn_output"),
            rule("layers.sa_layer_norm", "attn_output_norm"),
            rule("layers.ffn.lin1", "ffn_up"),
            rule("layers.ffn.lin2", "ffn_down"),
            rule("layers.output_layer_norm", "layer_output_norm"),
        ],
    ],
    prepare: |import| {
        import.want_text("activation", "gelu")?;
        // the table is stored, whatever it was made of
        let (width, heads) = (import.config.usize("dim")?, import.config.usize("n_heads")?);
        import.set("rope.dimension_count", Value::Uint(width / heads.max(1)));
        import.set("attention.layer_norm_epsilon", Value::Float(1e-12)); // a constant of its code
        import.set_classifier(&["vocab_"])
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
            match import.config.optional_str("classifier_pooling")?.unwrap_or("cls") {
                "mean" => {}
                "cls" => import.set("classifier.pooling_type", Value::Uint(CLS)),
                _ => return Err(import.config.wrong("classifier_pooling", "cls or mean")),
            }
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

pub(crate) static LLAMA_EMBED: Family = Family {
    names: &["LlamaBidirectionalModel"],
    arch: "llama-embed",
    keys: &[],
    tensors: &[&PAIRED_HEADS],
    prepare: |import| {
        import.set("attention.causal", Value::Bool(false));
        let pooling = match import.config.optional_str("pooling")?.unwrap_or("avg") {
            "avg" => MEAN,
            "cls" => CLS,
            "last" => LAST,
            _ => return Err(import.config.wrong("pooling", "avg, cls or last")),
        };
        import.set("pooling_type", Value::Uint(pooling));
        limit_context(import)
    },
};

impl Import {
    /// What the graph of BERT has.
    fn check_bert(&mut self) -> Result<(), FormatError> {
        self.want_text("hidden_act", "gelu")?;
        self.want_text("position_embedding_type", "absolute")?;
        self.set_types()
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
