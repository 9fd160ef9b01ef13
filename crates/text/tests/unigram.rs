//! The Unigram tokenizer gives the tokens of SentencePiece (`scripts/oracle/tokenizers/unigram.py`).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde::Deserialize;
use tern_formats::{Metadata, Value};
use tern_text::Tokenizer;

#[derive(Deserialize)]
struct Recorded {
    pieces: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i64>,
    texts: Vec<(String, Vec<u32>)>,
}

fn recorded() -> (Recorded, Metadata) {
    let recorded: Recorded = serde_json::from_str(include_str!("unigram/vocab.json")).unwrap();
    let map = include_bytes!("unigram/nmt_nfkc.bin");
    let mut m = Metadata::default();
    m.insert("tokenizer.ggml.model", Value::String("t5".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strings(recorded.pieces.clone()));
    m.insert("tokenizer.ggml.scores", Value::Floats(recorded.scores.clone()));
    m.insert("tokenizer.ggml.token_type", Value::Ints(recorded.types.clone()));
    m.insert("tokenizer.ggml.precompiled_charsmap", Value::Ints(map.iter().map(|b| i64::from(*b)).collect()));
    m.insert("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(true));
    m.insert("tokenizer.ggml.add_space_prefix", Value::Bool(true));
    for (key, id) in [("bos", 0), ("eos", 2), ("unknown", 3), ("seperator", 2)] {
        m.insert(format!("tokenizer.ggml.{key}_token_id"), Value::Uint(id));
    }
    m.insert("tokenizer.ggml.add_bos_token", Value::Bool(true));
    m.insert("tokenizer.ggml.add_sep_token", Value::Bool(true));
    (recorded, m)
}

#[test]
fn tokens_are_those_of_sentencepiece() {
    let (recorded, metadata) = recorded();
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let mut wrong = vec![];
    for (text, want) in &recorded.texts {
        let got = tokenizer.encode(text, false, false);
        if got != *want {
            let pieces = |ids: &[u32]| {
                ids.iter().filter_map(|id| tokenizer.token_text(*id)).collect::<Vec<_>>().join("|")
            };
            wrong.push(format!("{text:?}: want {}, got {}", pieces(want), pieces(&got)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn two_texts_are_separated_as_in_training() {
    let tokenizer = Tokenizer::from_metadata(&recorded().1).unwrap();
    let (a, b) = (tokenizer.encode("Hello", false, false), tokenizer.encode("world", false, false));
    let pair = tokenizer.encode_pair("Hello", "world");
    assert_eq!(pair, [&[0], &a[..], &[2, 2], &b, &[2]].concat());
    assert_eq!(tokenizer.second_text(&pair), None); // one type of tokens
}

/// A table that is damaged is refused, or leaves the text as it is; it never panics.
#[test]
fn damaged_tables_are_harmless() {
    let (recorded, metadata) = recorded();
    let map = include_bytes!("unigram/nmt_nfkc.bin");
    for cut in [0, 3, 4, 100, map.len() / 2, map.len() - 1] {
        for flip in [0, 7, 400, 5000] {
            let mut bytes = map[..cut].to_vec();
            bytes.iter_mut().skip(4 + flip).step_by(97).for_each(|b| *b ^= 0x5a);
            let mut metadata = metadata.clone();
            let ints = bytes.iter().map(|b| i64::from(*b)).collect();
            metadata.insert("tokenizer.ggml.precompiled_charsmap", Value::Ints(ints));
            let Ok(tokenizer) = Tokenizer::from_metadata(&metadata) else { continue };
            recorded.texts.iter().for_each(|(text, _)| drop(tokenizer.encode(text, true, true)));
        }
    }
}
