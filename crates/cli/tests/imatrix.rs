//! `tern imatrix` against the sums of llama.cpp (`scripts/oracle/llama/imatrix.py`), and what it refuses.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tern::formats::Checkpoint;
use tern::formats::quantize::ImportanceMatrix;

use crate::support::{Home, stories_file};

/// What llama.cpp summed with exact arithmetic.
#[derive(Deserialize)]
struct Recorded {
    ctx: usize,
    chunks: usize,
    every: usize,
    text: String,
    tensors: BTreeMap<String, Sums>,
}

#[derive(Deserialize)]
struct Sums {
    /// Rows per matrix.
    counts: Vec<f32>,
    /// The sum of all columns per matrix.
    totals: Vec<f32>,
    matrix: usize,
    /// Some columns of one matrix.
    columns: Vec<f32>,
}

fn floats(file: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = &file.tensors[name];
    let mut values = vec![0.0; tensor.rows() * tensor.cols()];
    tensor.quant.decode(&tensor.data(), &[], &mut values);
    values
}

fn compare(model: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/imatrix/{model}-q8_0.json"));
    let recorded: Recorded = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let home = Home::new();
    std::fs::write(home.path("text.txt"), &recorded.text).unwrap();
    let stories = stories_file();
    home.run(&["synth", &format!("{model}:q8_0"), "model.gguf", "--vocab", stories.to_str().unwrap()]).ok();
    let context = recorded.ctx.to_string();
    let args = [
        "imatrix",
        "-q",
        "-m",
        "./model.gguf",
        "-f",
        "text.txt",
        "-c",
        &context,
        "-o",
        "im.gguf",
        "--device",
        "cpu",
    ];
    home.run(&args).ok();
    let file = Checkpoint::open(&home.path("im.gguf")).unwrap();
    assert_eq!(file.metadata.str("general.type").unwrap(), "imatrix");
    assert_eq!(file.metadata.strings("imatrix.datasets").unwrap(), ["text.txt"]);
    assert_eq!(file.metadata.usize("imatrix.chunk_count").unwrap(), recorded.chunks);
    assert_eq!(file.metadata.usize("imatrix.chunk_size").unwrap(), recorded.ctx);
    // sums of few rows differ by the rounding of activations to 16 bits and of keys and values to f16
    let near = |got: f32, want: f32, most: f32, what: &str| {
        assert!((got - want).abs() < most, "{model} {what}: {got}, llama.cpp has {want}");
    };
    for (name, want) in &recorded.tensors {
        let (sums, counts) =
            (floats(&file, &format!("{name}.in_sum2")), floats(&file, &format!("{name}.counts")));
        assert_eq!(counts, want.counts, "{model} {name}");
        let cols = sums.len() / counts.len();
        let matrices = sums.chunks_exact(cols);
        for (i, (got, want)) in matrices.zip(&want.totals).enumerate() {
            near(got.iter().sum(), *want, 5e-4 * want + 1e-6, &format!("{name}, matrix {i}"));
        }
        let columns = sums[want.matrix * cols..][..cols].iter().step_by(recorded.every);
        assert_eq!(columns.len(), want.columns.len(), "{name}");
        let mean = want.totals[want.matrix] / cols as f32;
        for (i, (got, want)) in columns.zip(&want.columns).enumerate() {
            near(*got, *want, 5e-3 * (want + 1e-2 * mean), &format!("{name}, column {}", i * recorded.every));
        }
    }
    let importance = ImportanceMatrix::open(&home.path("im.gguf")).unwrap();
    assert!(importance.len() >= recorded.tensors.len());
    // and the file quantizes the model
    let args = ["quantize", "./model.gguf", "q4.gguf", "--to", "Q4_K_M", "--imatrix", "im.gguf"];
    let said = home.run(&args);
    said.ok();
    assert!(said.stderr().contains("the importance of columns is known of "), "{}", said.stderr());
    let quantized = Checkpoint::open(&home.path("q4.gguf")).unwrap();
    assert_eq!(quantized.metadata.usize("quantize.imatrix.chunks_count").unwrap(), recorded.chunks);
}

#[test]
fn dense_models_have_the_sums_of_llama_cpp() {
    compare("tiny-qwen3");
    compare("tiny-gemma3");
}

#[test]
fn each_expert_has_its_own_sums() {
    compare("tiny-qwen3moe");
}

#[test]
fn heads_with_their_own_matrices_and_recurrent_layers_are_measured() {
    compare("tiny-deepseek2");
    compare("tiny-qwen35moe");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_written() {
    let home = Home::new();
    std::fs::write(home.path("short.txt"), "Too short.").unwrap();
    let text = home.run(&["imatrix", "-q", "-c", "32", "-f", "short.txt"]).refusal().to_string();
    assert!(
        text.starts_with("short.txt has ") && text.ends_with(" tokens: at least 32 are required (-c)"),
        "{text}"
    );
    assert!(!home.path("imatrix.gguf").exists());
    let text = home.run(&["imatrix", "-q", "-f", "none.txt"]).refusal().to_string();
    assert!(text.starts_with("none.txt: "), "{text}");
    let text = home.run(&["imatrix", "-q", "-f", "short.txt", "-o", "none/im.gguf"]).refusal().to_string();
    assert_eq!(text, "none: no such folder");
    home.run(&["synth", "tiny-bert:q8_0", "bert.gguf"]).ok();
    let text = home.run(&["imatrix", "-q", "-m", "./bert.gguf", "-f", "short.txt"]).refusal().to_string();
    assert_eq!(text, "./bert.gguf computes vectors: importance is measured of models that generate text");
}
