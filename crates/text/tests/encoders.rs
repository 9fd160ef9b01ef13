//! `tokenizer.json` files of encoders give the tokens of the `tokenizers` library
//! (`scripts/oracle/tokenizers/encoders.py`).

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeMap;

use base64::Engine;
use serde::Deserialize;
use serde_json::{Value, json};
use tern_text::Tokenizer;

#[derive(Deserialize)]
struct Kind {
    json: Value,
    texts: Vec<(String, Vec<u32>)>,
    pairs: Vec<(String, String, Vec<u32>)>,
}

#[derive(Deserialize)]
struct Vocabulary {
    pieces: Vec<String>,
    scores: Vec<f64>,
    types: Vec<u64>,
}

const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// The file itself, with vocabulary and table.
fn whole(kind: &Value) -> Value {
    let vocab: Vocabulary = serde_json::from_str(include_str!("unigram/vocab.json")).unwrap();
    let mut whole = kind.clone();
    if kind["model"]["type"] == "Unigram" {
        let table = base64::engine::general_purpose::STANDARD.encode(include_bytes!("unigram/nmt_nfkc.bin"));
        let text = whole
            .to_string()
            .replace(r#""precompiled_charsmap":"""#, &format!(r#""precompiled_charsmap":"{table}""#));
        whole = serde_json::from_str(&text).unwrap();
        whole["model"]["vocab"] = vocab.pieces.iter().zip(&vocab.scores).map(|pair| json!(pair)).collect();
        return whole;
    }
    let mut tokens: Vec<String> = SPECIAL.map(String::from).to_vec();
    for (piece, kind) in vocab.pieces.iter().zip(&vocab.types) {
        let token = piece.strip_prefix('\u{2581}').map_or(format!("##{piece}"), String::from);
        if *kind == 1 && !token.is_empty() && !tokens.contains(&token) {
            tokens.push(token);
        }
    }
    whole["model"]["vocab"] = tokens.into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    whole
}

fn tokenizer(json: &Value) -> Result<Tokenizer, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let settings = json!({
        "unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "pad_token": "[PAD]", "mask_token": "[MASK]",
    });
    if json["model"]["type"] == "WordPiece" {
        std::fs::write(folder.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
    }
    let metadata = tern_formats::folder_tokenizer(folder.path()).map_err(|e| e.to_string())?;
    Ok(Tokenizer::from_metadata(&metadata).unwrap())
}

fn kinds() -> BTreeMap<String, Kind> {
    serde_json::from_str(include_str!("encoders.json")).unwrap()
}

#[test]
fn tokens_are_those_of_the_tokenizers_library() {
    let mut wrong = vec![];
    for (name, kind) in kinds() {
        let tokenizer = tokenizer(&whole(&kind.json)).unwrap();
        for (text, want) in &kind.texts {
            let got = tokenizer.encode(text, true, true);
            if got != *want {
                wrong.push(format!("{name}: {text:?}: want {want:?}, got {got:?}"));
            }
        }
        for (first, second, want) in &kind.pairs {
            let got = tokenizer.encode_pair(first, second);
            if got != *want {
                wrong.push(format!("{name}: {first:?} and {second:?}: want {want:?}, got {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_cannot_be_reproduced_is_refused_by_name() {
    let kinds = kinds();
    for (kind, pointer, value, why) in [
        ("merged", "/model/byte_fallback", json!(true), "a Unigram model with byte_fallback"),
        ("merged", "/normalizer/normalizers/1/content", json!("x"), "the normalizer"),
        ("merged", "/normalizer", json!({ "type": "Lowercase" }), r#"the normalizer {"type":"Lowercase"}"#),
        ("merged", "/normalizer", json!(null), "spaces are neither merged nor split at"),
        ("merged", "/pre_tokenizer/prepend_scheme", json!("first"), "the pre_tokenizer"),
        ("merged", "/model/vocab/9", json!(["a"]), r#"the entry ["a"] of the vocabulary"#),
        ("words", "/model/vocab/9", json!(["a\u{2581}b", -1.0]), "which spans words"),
        ("words", "/normalizer/precompiled_charsmap", json!("%"), "a precompiled_charsmap"),
        ("uncased", "/normalizer/clean_text", json!(false), "the normalizer"),
        ("uncased", "/normalizer/type", json!("NFD"), "the normalizer"),
        ("uncased", "/pre_tokenizer/type", json!("Whitespace"), "the pre_tokenizer"),
        ("uncased", "/model/vocab/the", json!("5"), "a token `the` without an id"),
        ("uncased", "/model/type", json!("WordLevel"), "a model of type WordLevel"),
    ] {
        let mut json = whole(&kinds[kind].json);
        *json.pointer_mut(pointer).unwrap() = value;
        let error = tokenizer(&json).err().unwrap_or_default();
        assert!(error.contains(why) && error.contains("not supported"), "{kind} {pointer}: {error}");
    }
}
