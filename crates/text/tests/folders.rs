//! `tokenizer.json` files of real models give the tokens of the `tokenizers` library, or are refused by name.
//!
//! The files are looked for in `$TERN_TEST_DATA/tokenizers` (`scripts/fetch_test_data.py`);
//! `scripts/oracle/tokenizers/folders.py` recorded the tokens.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tern_text::Tokenizer;

#[derive(Deserialize)]
struct Recorded {
    texts: Vec<String>,
    tokens: BTreeMap<String, Vec<Vec<u32>>>,
}

/// The one file that is refused, and why.
const REFUSED: (&str, &str) = ("jiutian-139moe-chat", "the normalizer");

#[test]
fn tokens_are_those_of_the_tokenizers_library() {
    let recorded: Recorded = serde_json::from_str(include_str!("folders.json")).unwrap();
    let Some(data) = std::env::var_os("TERN_TEST_DATA").map(|data| Path::new(&data).join("tokenizers"))
    else {
        return println!("skipped: tokenizers (TERN_TEST_DATA is not set)");
    };
    if !data.is_dir() {
        return println!("skipped: tokenizers (not in TERN_TEST_DATA)");
    }
    let mut wrong = vec![];
    for (name, tokens) in &recorded.tokens {
        let metadata = match tern_formats::folder_tokenizer(&data.join(name)) {
            Ok(metadata) => metadata,
            Err(why) if name == REFUSED.0 => {
                assert!(why.to_string().contains(REFUSED.1), "{why}");
                continue;
            }
            Err(why) => {
                wrong.push(why.to_string());
                continue;
            }
        };
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        for (text, want) in recorded.texts.iter().zip(tokens) {
            let got = tokenizer.encode(text, false, true);
            if got != *want {
                wrong.push(format!("{name}: {text:?}: want {want:?}, got {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
