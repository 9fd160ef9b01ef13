//! BERT's WordPiece in a `tokenizer.json`: tokens inside a word are marked there, tokens at its
//! beginning in GGUF files.

use serde_json::Value as Json;

use super::{NORMAL, Vocabulary};
use crate::{Metadata, Value};

pub(super) fn describe(vocabulary: &Vocabulary, json: &Json, metadata: &mut Metadata) -> Result<(), String> {
    let model = &json["model"];
    let inside = model.get("continuing_subword_prefix").and_then(Json::as_str).unwrap_or("##");
    let spelled = |(token, kind): (&String, &i64)| match token.strip_prefix(inside) {
        _ if *kind != NORMAL => token.clone(),
        Some(rest) => rest.to_string(),
        None => format!("\u{2581}{token}"),
    };
    let tokens = vocabulary.tokens.iter().zip(&vocabulary.kinds).map(spelled).collect();
    metadata.insert("tokenizer.ggml.tokens", Value::Strings(tokens));
    metadata.insert("tokenizer.ggml.model", Value::String("bert".into()));
    metadata.insert("tokenizer.ggml.pre", Value::String("default".into()));
    if let Some(most) = model.get("max_input_chars_per_word").and_then(Json::as_u64) {
        metadata.insert("tokenizer.max_word_characters", Value::Uint(most));
    }
    let pre = json.get("pre_tokenizer").unwrap_or(&Json::Null);
    if pre["type"] != "BertPreTokenizer" {
        return Err(format!("the pre_tokenizer {pre}"));
    }
    normalizer(json.get("normalizer").unwrap_or(&Json::Null), metadata)
}

fn normalizer(step: &Json, metadata: &mut Metadata) -> Result<(), String> {
    let flag = |key: &str| step.get(key).and_then(Json::as_bool);
    let plain = flag("clean_text") != Some(false) && flag("handle_chinese_chars") != Some(false);
    if step["type"] != "BertNormalizer" || !plain {
        return Err(format!("the normalizer {step}"));
    }
    let lowercase = flag("lowercase").unwrap_or(true);
    metadata.insert("tokenizer.ggml.normalizer.lowercase", Value::Bool(lowercase));
    let strips = flag("strip_accents").unwrap_or(lowercase);
    metadata.insert("tokenizer.ggml.normalizer.strip_accents", Value::Bool(strips));
    Ok(())
}
