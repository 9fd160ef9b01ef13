//! Vocabularies of real models, compared with the tokens of llama.cpp.
//!
//! The files are those of llama.cpp's `models/` folder: `NAME.gguf` with the texts in `NAME.gguf.inp` and,
//! for each text, a line of ids in `NAME.gguf.out`. They are looked for in `$TERN_TEST_DATA/vocabs`.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tern_formats::{Checkpoint, Metadata, Value};
use tern_text::{Tokenizer, TokenizerError};

/// Texts that are hard to round-trip.
const HARD: &[&str] = &[
    "",
    " ",
    "   ",
    "\n",
    "\r\n\r\n \t\t x",
    " leading and trailing ",
    "don't I'LL we'Ve 'tis",
    "0 12 345 6789 1234567 ½ ٣",
    "中文 かな カナ 한국어 ไทย កាន់តែ",
    "🚀 😶\u{200D}🌫\u{FE0F} 🦙\u{1F1E7}\u{1F1EC}",
    "e\u{301}\u{327} Vieê\u{301}t \u{0}\u{7}\u{7F}\u{85}\u{A0}\u{2028}\u{3000}\u{FEFF}\u{FFFD}\u{10FFFF}",
    "fn main() { println!(\"{}\", 1 << 3); } // ☃",
    "____====----....!!!!????",
    "a<s>b</s><|im_end|><0x0A>",
];

fn model() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models/tern-stories-1bit.gguf");
    Tokenizer::from_metadata(&Checkpoint::open(&path).unwrap().metadata).unwrap()
}

/// The available vocabularies: name, path, tokenizer.
fn vocabs() -> Vec<(String, PathBuf, Tokenizer)> {
    let Some(data) = std::env::var_os("TERN_TEST_DATA") else {
        println!("skipped: vocabs (TERN_TEST_DATA is not set)");
        return Vec::new();
    };
    let folder = Path::new(&data).join("vocabs");
    if !folder.is_dir() {
        println!("skipped: vocabs (not in TERN_TEST_DATA)");
        return Vec::new();
    }
    let mut paths: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    paths.sort();
    assert!(!paths.is_empty(), "no vocabularies in {}", folder.display());
    let open = |path: PathBuf| {
        let tokenizer = Tokenizer::from_metadata(&Checkpoint::open(&path).unwrap().metadata).unwrap();
        (path.file_stem().unwrap().to_string_lossy().into_owned(), path, tokenizer)
    };
    paths.into_iter().map(open).collect()
}

fn beside(path: &Path, extension: &str) -> Option<String> {
    std::fs::read_to_string(format!("{}.{extension}", path.display())).ok()
}

#[test]
fn the_tokens_are_those_of_llama_cpp() {
    for (name, path, tokenizer) in vocabs() {
        let (Some(texts), Some(want)) = (beside(&path, "inp"), beside(&path, "out")) else { continue };
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let want: Vec<&str> = want.lines().collect();
        assert!(texts.len() >= want.len() && want.len() >= 45, "{name}: {} texts", want.len());
        for (text, want) in texts.iter().zip(want) {
            let want: Vec<u32> = want.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, false, false), want, "{name}: {text:?}");
        }
        assert_eq!(tokenizer.warnings(), [] as [&str; 0], "{name}");
    }
}

#[test]
fn text_round_trips_through_tokens() {
    for (name, _, tokenizer) in vocabs() {
        if name.contains("bert") {
            continue; // normalises, so it does not round-trip
        }
        for text in HARD {
            for parse_special in [false, true] {
                let ids = tokenizer.encode(text, false, parse_special);
                // SentencePiece adds a space after each marker
                if parse_special && ids.iter().any(|&id| tokenizer.is_control(id)) && tokenizer.strips_space()
                {
                    continue;
                }
                assert_eq!(&tokenizer.decode(&ids, true), text, "{name}: {ids:?}");
            }
            let ids = tokenizer.encode(text, false, false);
            assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "{name}: {text:?} gave a control token");
        }
    }
}

#[test]
fn a_megabyte_of_any_text_takes_linear_time() {
    let hostile = [" ", "a", "7", " \n", "中"];
    let kinds = ["llama-spm", "gemma-4", "llama-bpe", "deepseek-llm", "bert-bge"]; // one per splitting method
    let mut all = vocabs();
    all.retain(|(name, _, _)| kinds.iter().any(|kind| name.ends_with(kind)));
    all.push(("tern-stories".into(), PathBuf::new(), model()));
    for (name, _, tokenizer) in all {
        for unit in hostile {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, true, true);
            let took = start.elapsed();
            // a guard against quadratic time, which would take hours
            assert!(took < Duration::from_secs(60), "{name}: 1 MiB of {unit:?} took {took:?}");
            assert!(!ids.is_empty());
        }
    }
}

#[test]
fn ends_and_markers_of_known_models() {
    for (name, _, tokenizer) in vocabs() {
        let ends: Vec<&str> = tokenizer.eog().iter().filter_map(|&id| tokenizer.token_text(id)).collect();
        match name.trim_start_matches("ggml-vocab-") {
            "qwen2" => {
                assert_eq!(ends, ["<|endoftext|>", "<|im_end|>"]);
                let ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>", false, true);
                assert_eq!((ids[0], ids[ids.len() - 1]), (151644, 151645));
                assert_eq!(tokenizer.decode(&ids, false), "user\nhi");
                assert_eq!(tokenizer.decode(&ids, true), "<|im_start|>user\nhi<|im_end|>");
                assert!(!tokenizer.add_bos());
            }
            "llama-bpe" => {
                assert_eq!(ends, ["<|end_of_text|>", "<|eot_id|>"]);
                assert_eq!(tokenizer.encode("", true, false), [128_000]);
            }
            "llama-spm" => {
                assert_eq!(ends, ["</s>"]);
                assert_eq!(tokenizer.encode("Hello", true, false), [1, 15043]);
                assert_eq!(tokenizer.decode(&[1, 15043], false), "Hello");
                assert_eq!(tokenizer.token_bytes(15043, false), b" Hello");
                assert_eq!(tokenizer.token_bytes(13, false), b"\n");
                assert_eq!(tokenizer.encode("🦙", false, false), [29871, 243, 162, 169, 156]);
            }
            "gemma-4" => {
                assert_eq!(ends, ["<eos>", "<|tool_response>", "<turn|>"]);
                assert_eq!(tokenizer.encode("x", true, false)[0], 2);
                assert!(tokenizer.chat_template().is_some());
            }
            "bert-bge" => {
                let ids = tokenizer.encode("Héllo", true, false);
                assert_eq!(ids, [101, 7592, 102]);
                assert_eq!(tokenizer.decode(&ids, false), "hello");
            }
            "command-r" => {
                let names: Vec<&str> = tokenizer.named_chat_templates().map(|(name, _)| name).collect();
                assert_eq!(names, ["tool_use", "rag"]);
            }
            _ => {}
        }
    }
}

#[test]
fn the_embedded_model_tokenises() {
    let tokenizer = model();
    assert_eq!(tokenizer.vocab_size(), 4096);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (Some(0), Some(0), true));
    assert_eq!(tokenizer.eog().iter().copied().collect::<Vec<_>>(), [0]);
    assert_eq!(tokenizer.token_text(0), Some("<|endoftext|>"));
    assert_eq!(tokenizer.id_of("<|endoftext|>"), Some(0));
    assert!(tokenizer.is_control(0) && !tokenizer.is_control(1));
    assert_eq!(
        (tokenizer.token_bytes(0, false), tokenizer.token_bytes(0, true)),
        (&b""[..], &b"<|endoftext|>"[..])
    );
    assert_eq!((tokenizer.token_bytes(9999, true), tokenizer.token_text(9999)), (&b""[..], None));
    assert_eq!(tokenizer.warnings(), [] as [&str; 0]);

    let text = "Once upon a time, there was a little girl named Lily.";
    let ids = tokenizer.encode(text, true, true);
    assert_eq!(ids[0], 0);
    assert!(ids.len() < 20, "{ids:?}");
    assert_eq!(tokenizer.decode(&ids, false), text);
    assert_eq!(tokenizer.encode("<|endoftext|>", false, true), [0]);
    assert!(!tokenizer.encode("<|endoftext|>", false, false).contains(&0));
    for text in HARD {
        assert_eq!(&tokenizer.decode(&tokenizer.encode(text, false, false), true), text);
    }
}

fn small(model: &str, pre: Option<&str>) -> Metadata {
    let strings = |list: &[&str]| Value::Strings(list.iter().map(|&s| s.into()).collect());
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", Value::String(model.into()));
    if let Some(pre) = pre {
        metadata.insert("tokenizer.ggml.pre", Value::String(pre.into()));
    }
    metadata.insert("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "<|end|>", "<s>", "", "[X]"]));
    metadata.insert("tokenizer.ggml.token_type", Value::Ints(vec![1, 1, 1, 1, 3, 5, 4]));
    metadata.insert("tokenizer.ggml.merges", strings(&["a b", "b nothing", "broken"]));
    metadata
}

#[test]
fn invalid_vocabularies_are_rejected() {
    let error = |metadata: &Metadata| Tokenizer::from_metadata(metadata).unwrap_err().to_string();
    let none = Metadata::default();
    assert_eq!(error(&none), "metadata key `tokenizer.ggml.model` is missing");
    assert_eq!(
        error(&small("rwkv", None)),
        "tokenizer model `rwkv` is not supported: want gpt2, llama, gemma4, bert or t5"
    );
    assert_eq!(
        error(&small("gpt2", Some("future"))),
        "unknown pre-tokenizer `future`: a different one would produce wrong tokens"
    );
    let mut short = small("gpt2", Some("gpt-2"));
    short.insert("tokenizer.ggml.token_type", Value::Ints(vec![1]));
    assert_eq!(error(&short), "metadata key `tokenizer.ggml.token_type`: want 7 entries, file has 1");
    short.insert("tokenizer.ggml.token_type", Value::Ints(vec![1, 1, 9, 1, 1, 1, 1]));
    assert_eq!(Tokenizer::from_metadata(&short).unwrap_err(), TokenizerError::TokenType { id: 2, found: 9 });
}

#[test]
fn an_unusual_vocabulary_works_with_warnings() {
    let mut metadata = small("gpt2", None);
    metadata.insert("tokenizer.ggml.eos_token_id", Value::Uint(70));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let warnings = tokenizer.warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].starts_with("tokenizer.ggml.pre is missing"));
    assert_eq!(warnings[1], "tokenizer.ggml.eos_token_id is 70, the vocabulary has 7 tokens; it is ignored");
    assert_eq!(warnings[2], "2 of 3 merges refer to tokens that are not in the vocabulary");
    assert_eq!(tokenizer.eos(), None);
    // a text that looks like an end token becomes a control token; a byte without a token is dropped
    assert_eq!(tokenizer.encode("ab<|end|>b?[X]", true, false), [2, 1, 6]);
    assert_eq!(tokenizer.encode("ab<|end|>b?[X]", true, true), [2, 3, 1, 6]);
    assert_eq!(tokenizer.eog().iter().copied().collect::<Vec<_>>(), [3]);
}

#[test]
fn sentencepiece_never_merges_letters_into_a_control_token() {
    let mut metadata = small("llama", None);
    let tokens = ["<unk>", "<s>", "</s>", "<", "s", ">", "s>", "▁", "▁<"].map(String::from);
    metadata.insert("tokenizer.ggml.tokens", Value::Strings(tokens.into()));
    metadata.insert("tokenizer.ggml.token_type", Value::Ints(vec![2, 3, 3, 1, 1, 1, 1, 1, 1]));
    metadata.insert("tokenizer.ggml.scores", Value::Floats(vec![0., 0., 0., -9., -9., -9., -1., -3., -2.]));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("<s>", true, false), [1, 8, 6]);
    assert_eq!(tokenizer.encode("<s><s>s>", false, true), [1, 1, 7, 6]);
    assert_eq!(tokenizer.encode("é", false, false), [7, 0, 0]); // no byte tokens: unknown
}

#[test]
fn the_markers_of_phi_3_include_the_spaces_after_them() {
    let mut metadata = small("gpt2", Some("gpt-2"));
    metadata.insert("general.name", Value::String("Phi-3 mini".into()));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("[X] \n\tab <s>", false, true), true), "[X]ab<s>");
    metadata.insert("general.name", Value::String("another".into()));
    assert_eq!(Tokenizer::from_metadata(&metadata).unwrap().encode("[X][X]a", false, true), [6, 6, 0]);
}

#[test]
fn the_end_of_a_harmony_message_does_not_end_the_turn() {
    let mut metadata = small("gpt2", Some("gpt-4o"));
    let tokens = ["a", "<|end|>", "<|return|>", "<|call|>", "</s>", "<|fim_pad|>"].map(String::from);
    metadata.insert("tokenizer.ggml.tokens", Value::Strings(tokens.into()));
    metadata.insert("tokenizer.ggml.token_type", Value::Ints(vec![1, 3, 3, 3, 1, 3]));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let ends = |tokenizer: &Tokenizer| tokenizer.eog().iter().copied().collect::<Vec<_>>();
    assert_eq!(ends(&tokenizer), [2, 3, 5]); // nor does `</s>`, which is text here
    metadata.insert("tokenizer.ggml.token_type", Value::Ints(vec![1, 3, 3, 3, 3, 3]));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::Uint(1));
    assert_eq!(ends(&Tokenizer::from_metadata(&metadata).unwrap()), [1, 2, 3, 4, 5]);
}
