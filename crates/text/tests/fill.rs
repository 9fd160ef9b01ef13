//! Fill-in-the-middle tokens are those that llama.cpp finds in the same vocabularies.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use serde_json::Value;
use tern_formats::{Metadata, Value as MetadataValue};
use tern_text::{FillTokens, Tokenizer};

/// The characters that stand for bytes in such vocabularies.
fn byte_tokens() -> Vec<String> {
    let printable = (33..127).chain(161..173).chain(174..256).chain(256..256 + 68);
    printable.map(|c| char::from_u32(c).unwrap().to_string()).collect()
}

fn tokenizer(tokens: &[String], keys: &Value) -> Tokenizer {
    let mut all = byte_tokens();
    let first = all.len() as u64;
    let kinds = vec![1; all.len()].into_iter().chain(vec![3; tokens.len()]).collect();
    all.extend_from_slice(tokens);
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", MetadataValue::String("gpt2".into()));
    metadata.insert("tokenizer.ggml.pre", MetadataValue::String("gpt-2".into()));
    metadata.insert("tokenizer.ggml.tokens", MetadataValue::Strings(all));
    metadata.insert("tokenizer.ggml.token_type", MetadataValue::Ints(kinds));
    metadata.insert("tokenizer.ggml.merges", MetadataValue::Strings(Vec::new()));
    for (key, at) in keys.as_object().unwrap() {
        let id = MetadataValue::Uint(first + at.as_u64().unwrap());
        metadata.insert(format!("tokenizer.ggml.{key}_token_id"), id);
    }
    Tokenizer::from_metadata(&metadata).unwrap()
}

#[test]
fn fill_tokens_are_those_of_llama_cpp() {
    let recorded: Value = serde_json::from_str(include_str!("fill.json")).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    assert!(cases.len() > 8);
    for case in cases {
        let tokens: Vec<String> = serde_json::from_value(case["tokens"].clone()).unwrap();
        let tokenizer = tokenizer(&tokens, &case["keys"]);
        let first = byte_tokens().len() as u32;
        let id = |marker: &str| case["fill"][marker].as_u64().map(|at| first + at as u32);
        let want = match (id("pre"), id("suf"), id("mid")) {
            (Some(prefix), Some(suffix), Some(middle)) => {
                Some(FillTokens { prefix, suffix, middle, repository: id("rep"), file: id("sep") })
            }
            _ => None, // a gap needs all three
        };
        assert_eq!(tokenizer.fill_tokens(), want, "{case}");
        let ends: Vec<usize> =
            (0..tokens.len()).filter(|at| tokenizer.eog().contains(&(first + *at as u32))).collect();
        assert_eq!(serde_json::json!(ends), case["ends"], "{case}");
    }
}
