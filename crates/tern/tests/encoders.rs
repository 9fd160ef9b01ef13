//! Encoders as a program uses them: all-MiniLM-L6-v2 as sentence-transformers computes
//! it, and tiny random models.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use serde_json::Value;
use tern::engine::EngineError;
use tern::formats::{Checkpoint, Conversion};
use tern::models::{Shape, Synth, plain_tokenizer};
use tern::{Device, Error, LoadOptions, Model, Pooling, normalized};

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn options() -> LoadOptions {
    LoadOptions { device: Device::Cpu, threads: Some(2), ..LoadOptions::default() }
}

#[test]
fn minilm_is_that_of_sentence_transformers() {
    let data = std::env::var_os("TERN_TEST_DATA").unwrap_or_default();
    let folder = Path::new(&data).join("all-minilm-l6-v2");
    if !folder.exists() {
        println!("skipped: no {}", folder.display());
        return;
    }
    check_minilm(&folder);
    // and the file that `tern convert` makes of it
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("all-minilm-l6-v2.gguf");
    let source = Checkpoint::open(&folder).unwrap();
    Conversion { threads: 2, ..Conversion::unchanged(&source) }.write(&source, &file, &mut |_| ()).unwrap();
    check_minilm(&file);
}

fn check_minilm(file: &Path) {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/embeddings/all-minilm-l6-v2.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
    let recorded = fixture["texts"].as_array().unwrap();
    let texts: Vec<&str> = recorded.iter().map(|text| text["text"].as_str().unwrap()).collect();
    let model = Model::load_with(file.to_str().unwrap(), &options()).unwrap();
    let vectors: Vec<Vec<f32>> =
        model.embed_all(texts.iter().copied()).unwrap().into_iter().map(normalized).collect();
    for ((text, recorded), vector) in texts.iter().zip(recorded).zip(&vectors) {
        let tokens: Vec<u32> = serde_json::from_value(recorded["tokens"].clone()).unwrap();
        assert_eq!(model.tokenizer().encode(text, true, true), tokens, "{text}");
        let want: Vec<f32> = serde_json::from_value(recorded["vector"].clone()).unwrap();
        let cosine = dot(vector, &want);
        println!("{cosine:.7} {text}");
        assert!(cosine > 0.9999, "{text}: cosine {cosine}");
    }
    // the similarities that the model's page shows
    for (other, want) in [(1, 0.695), (2, 0.943), (3, 0.257)] {
        let got = dot(&vectors[0], &vectors[other]);
        assert!((got - want).abs() < 6e-4, "{}: {got}, published {want}", texts[other]);
    }
    let long = "word ".repeat(600);
    match model.embed_all([&*long]) {
        Err(Error::Engine(EngineError::TextTooLong { tokens: 602, max_tokens: 512 })) => {}
        other => panic!("{other:?}"),
    }
    match model.generate("a") {
        Err(Error::Engine(EngineError::NoText)) => {}
        other => panic!("{other:?}"),
    }
}

/// A file of a tiny random model.
fn tiny(shape: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    let shape = Shape::by_name(shape).unwrap();
    let mut synth = Synth::new(shape, tern::quant::by_name("q8_0").unwrap(), None).unwrap();
    synth.write(&plain_tokenizer(shape.vocab), file.as_file_mut(), |_, _| ()).unwrap();
    file
}

#[test]
fn many_texts_of_all_lengths_have_the_vectors_that_they_have_alone() {
    let file = tiny("tiny-bert");
    let model = Model::load_with(file.path().to_str().unwrap(), &options()).unwrap();
    let texts: Vec<String> = (0..300).map(|i| "some text ".repeat(i % 23 + 1) + &i.to_string()).collect();
    let all = model.embed_all(texts.iter().map(String::as_str)).unwrap();
    assert_eq!(all.len(), 300);
    for at in [0, 7, 123, 299] {
        let alone = model.embed_all([&*texts[at]]).unwrap().remove(0);
        assert!(alone == all[at], "text {at}");
    }
    let stats = model.handle().stats();
    assert!(stats.steps < 100, "{} steps: texts must share steps", stats.steps);
    assert_eq!((stats.pages_free, stats.cached_tokens), (stats.pages_total, 0));
}

#[test]
fn without_pooling_every_token_has_a_vector_whose_mean_is_that_of_the_text() {
    let file = tiny("tiny-bert");
    for name in [file.path().to_str().unwrap(), "stories"] {
        let load = |pooling| Model::load_with(name, &LoadOptions { pooling, ..options() }).unwrap();
        let (each, mean) = (load(Some(Pooling::None)), load(Some(Pooling::Mean)));
        let texts = ["one", "some text of several words", "one"];
        let (rows, want) = (each.embed_all(texts).unwrap(), mean.embed_all(texts).unwrap());
        for ((text, rows), want) in texts.iter().zip(&rows).zip(want) {
            let tokens = each.tokenizer().encode(text, true, true).len();
            assert_eq!(rows.len(), tokens * want.len(), "{name}: {text}");
            let sum = |i: usize| rows[i..].iter().step_by(want.len()).sum::<f32>();
            let got: Vec<f32> = (0..want.len()).map(|i| sum(i) / tokens as f32).collect();
            let cosine = dot(&normalized(got), &normalized(want));
            assert!(cosine > 0.99999, "{name}: {text}: {cosine}");
        }
        assert_eq!(rows[0], rows[2]);
    }
}

/// Encoders with convolutions: one that sees whole texts, and one that is causal, with state, and has a
/// narrow row per token.
#[test]
fn models_with_convolutions_have_vectors() {
    for (shape, width) in [("tiny-lfm2-embedding", None), ("tiny-lfm2-colbert", Some(128))] {
        let file = tiny(shape);
        let model = Model::load_with(file.path().to_str().unwrap(), &options()).unwrap();
        let texts: Vec<String> = (0..60).map(|i| "some text ".repeat(i % 9 + 1) + &i.to_string()).collect();
        let all = model.embed_all(texts.iter().map(String::as_str)).unwrap();
        for at in [0, 13, 59] {
            let tokens = model.tokenizer().encode(&texts[at], true, true).len();
            assert_eq!(all[at].len(), width.map_or(256, |width| width * tokens), "{shape}: text {at}");
            assert!(model.embed_all([&*texts[at]]).unwrap()[0] == all[at], "{shape}: text {at}");
        }
        assert!(matches!(model.generate("a"), Err(Error::Engine(EngineError::NoText))));
    }
}

#[test]
fn documents_are_scored_in_their_order_whatever_runs_beside_them() {
    let file = tiny("tiny-bert-rank");
    let model = Model::load_with(file.path().to_str().unwrap(), &options()).unwrap();
    let documents: Vec<String> = (0..40).map(|i| format!("document {i} {}", "word ".repeat(i))).collect();
    let scores = model.rerank("a query", documents.iter().map(String::as_str), None).unwrap();
    assert_eq!(scores.len(), 40);
    let alone = model.rerank("a query", [&*documents[17]], None).unwrap();
    assert_eq!(alone[0], scores[17]);
    assert!(scores.windows(2).any(|pair| pair[0] != pair[1]));
    let generates = Model::load_with("stories", &options()).unwrap();
    assert!(matches!(generates.rerank("a", ["b"], None), Err(Error::NoReranker(_))));
}

/// Qwen3-Reranker has no classifier: its score is the probability of `yes`, as llama.cpp's logits give it.
#[test]
fn a_judge_scores_by_its_logits() {
    let folder = std::env::var_os("TERN_TEST_DATA").unwrap_or_default();
    let vocab = std::path::Path::new(&folder).join("vocabs/ggml-vocab-qwen2.gguf");
    if !vocab.exists() {
        println!("skipped: no {}", vocab.display());
        return;
    }
    let tokenizer = tern::formats::Checkpoint::open(&vocab).unwrap().metadata;
    let shape = Shape::by_name("tiny-qwen3").unwrap();
    let shape = Shape { vocab: tokenizer.strings("tokenizer.ggml.tokens").unwrap().len(), ..shape.clone() };
    let mut file = tempfile::Builder::new().prefix("tiny-qwen3-reranker").suffix(".gguf").tempfile().unwrap();
    let mut synth = Synth::new(&shape, tern::quant::by_name("q8_0").unwrap(), None).unwrap();
    synth.write(&tokenizer, file.as_file_mut(), |_, _| ()).unwrap();
    let fixture =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/embeddings/judge-tiny-qwen3-reranker-q8_0.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
    let documents = fixture["documents"].as_array().unwrap();
    let texts = || documents.iter().map(|document| document["text"].as_str().unwrap());
    let query = fixture["query"].as_str().unwrap();
    // one sequence at a time, and several
    for max_seqs in [1, 4] {
        let options = LoadOptions { max_seqs, max_waiting: 0, ..options() };
        let model = Model::load_with(file.path().to_str().unwrap(), &options).unwrap();
        let scores = model.rerank(query, texts(), None).unwrap();
        for (document, score) in documents.iter().zip(&scores) {
            let pair = tern::Pair { query, document: document["text"].as_str().unwrap(), instruction: None };
            assert_eq!(model.pair_tokens(pair).len() as u64, document["tokens"].as_u64().unwrap());
            let want = document["score"].as_f64().unwrap();
            assert!((f64::from(*score) - want).abs() < 1e-3, "{document}: {score}");
        }
    }
}
