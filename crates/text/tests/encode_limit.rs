//! Encoding within a limit: the same tokens, or an error without reading the whole text.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::cell::Cell;
use std::path::Path;

use tern_formats::{Checkpoint, Metadata, Value};
use tern_text::{EncodeError, EncodeLimit, Tokenizer};

const TEXTS: &[&str] = &[
    "",
    "a",
    "Once upon a time, there was a little girl named Lily.",
    "<|endoftext|>a<|endoftext|>  b  <|endoftext|>",
    "0 12 345 6789 1234567   中文 🚀 e\u{301}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

fn model() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models/tern-stories-1bit.gguf");
    Tokenizer::from_metadata(&Checkpoint::open(&path).unwrap().metadata).unwrap()
}

/// A vocabulary of `tokens`, which are all plain text.
fn small(model: &str, tokens: &[&str]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", Value::String(model.into()));
    metadata.insert("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    metadata.insert("tokenizer.ggml.tokens", Value::Strings(tokens.iter().map(|&t| t.into()).collect()));
    metadata.insert("tokenizer.ggml.merges", Value::Strings(vec![]));
    metadata
}

#[test]
fn the_limit_is_exact() {
    let tokenizer = model();
    for text in TEXTS {
        for add_special in [false, true] {
            let want = tokenizer.encode(text, add_special, true);
            let within = |tokens| {
                let limit = EncodeLimit { tokens, cancelled: &|| false };
                tokenizer.encode_within(text, add_special, true, &limit)
            };
            assert_eq!(within(want.len()).as_ref(), Ok(&want), "{text:?}");
            if let Some(fewer) = want.len().checked_sub(1) {
                assert_eq!(within(fewer), Err(EncodeError::Tokens(fewer)), "{text:?}");
            }
        }
    }
}

#[test]
fn a_long_text_is_not_read_to_its_end() {
    let tokenizer = model();
    let checks = Cell::new(0);
    let cancelled = || {
        checks.set(checks.get() + 1);
        false
    };
    let limit = EncodeLimit { tokens: 100, cancelled: &cancelled };
    for text in ["Once upon a time ", "<|endoftext|>", "1", "\n"] {
        let long = text.repeat((4 << 20) / text.len());
        let ended = tokenizer.encode_within(&long, true, true, &limit);
        assert_eq!(ended, Err(EncodeError::Tokens(100)), "{text:?}");
    }
    // each is called once for 16 KiB, and 100 tokens are less
    assert_eq!(checks.get(), 0);
}

#[test]
fn a_long_word_is_rejected_before_it_is_merged() {
    // one-byte tokens and one of a thousand bytes, which would raise the bound to a megabyte
    let tokens: Vec<String> = (0..=255_u8)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain(["a", "b", "ab"].map(String::from))
        .chain(["-".repeat(1000)])
        .collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let tokenizer = Tokenizer::from_metadata(&small("llama", &tokens)).unwrap();
    let checks = Cell::new(0);
    let cancelled = || {
        checks.set(checks.get() + 1);
        false
    };
    let limit = EncodeLimit { tokens: 5000, cancelled: &cancelled };
    let ended = |text: &str| tokenizer.encode_within(text, false, true, &limit).map(|ids| ids.len());
    assert_eq!(ended(&"ab".repeat(500_000)), Err(EncodeError::Tokens(5000)));
    assert_eq!(checks.get(), 0); // none of it was merged
    // a word that may fit is merged
    assert_eq!(ended(&"ab".repeat(4000)), Ok(tokenizer.encode(&"ab".repeat(4000), false, true).len()));
}

#[test]
fn a_cancelled_encoding_ends_also_within_one_word() {
    let tokenizer = model();
    for text in ["Once upon a time ", "the"] {
        let checks = Cell::new(0);
        let cancelled = || {
            checks.set(checks.get() + 1);
            checks.get() == 3
        };
        let limit = EncodeLimit { tokens: usize::MAX, cancelled: &cancelled };
        let long = text.repeat((1 << 20) / text.len());
        let ended = tokenizer.encode_within(&long, true, true, &limit).map(|ids| ids.len());
        assert_eq!((ended, checks.get()), (Err(EncodeError::Cancelled), 3), "{text:?}");
    }
}

#[test]
fn bytes_bound_the_number_of_tokens_unless_some_have_none() {
    // bytes without a token are dropped and do not count
    let partial = Tokenizer::from_metadata(&small("gpt2", &["a", "b"])).unwrap();
    let limit = EncodeLimit { tokens: 2, cancelled: &|| false };
    let text = format!("a{}b{}", "?".repeat(10_000), "!".repeat(10_000));
    assert_eq!(partial.encode_within(&text, false, true, &limit), Ok(vec![0, 1]));
    let text = format!("{}aaa", "?".repeat(10_000));
    assert_eq!(partial.encode_within(&text, false, true, &limit), Err(EncodeError::Tokens(2)));
    // a space mark that the text has itself is one of three bytes
    let spaces = Tokenizer::from_metadata(&small("llama", &["<unk>", "a", "▁▁a"])).unwrap();
    let limit = EncodeLimit { tokens: spaces.encode("▁▁a", false, true).len(), cancelled: &|| false };
    assert!(spaces.encode_within("▁▁a", false, true, &limit).is_ok());
    // a word of any length may be one unknown token
    let pieces = Tokenizer::from_metadata(&small("bert", &["▁a"])).unwrap();
    let text = "a".repeat(10_000);
    let limit = EncodeLimit { tokens: pieces.encode(&text, false, true).len(), cancelled: &|| false };
    assert!(pieces.encode_within(&text, false, true, &limit).is_ok());
}
