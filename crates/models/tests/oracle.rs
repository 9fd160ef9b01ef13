//! Small files of hybrid models, plain and stored rotated, beside the logits of an
//! independent implementation in f64.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use tern_cpu::Cpu;
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_formats::Checkpoint;
use tern_graph::{Backend, KvCells, Reference, divergence};
use tern_models::Model;

/// What was recorded for one file.
struct Recorded {
    checkpoint: Checkpoint,
    tokens: Vec<u32>,
    /// Positions of the rows.
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/oracle")
}

fn recorded(name: &str) -> Recorded {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let numbers = |key: &str| -> Vec<usize> {
        json[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
    };
    let row = |row: &Value| row.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    Recorded {
        checkpoint: Checkpoint::open(&folder().join(format!("{name}.gguf"))).unwrap(),
        tokens: numbers("tokens").into_iter().map(|id| id as u32).collect(),
        positions: numbers("positions"),
        logits: json["logits"].as_array().unwrap().iter().map(row).collect(),
    }
}

/// The recorded rows as a backend computes them, in chunks.
fn rows(recorded: &Recorded, backend: Box<dyn Backend>, chunk: usize) -> Vec<Vec<f32>> {
    let (model, tensors) = Model::open(&recorded.checkpoint, None).unwrap();
    let pages = recorded.tokens.len().div_ceil(16);
    let capacity =
        Capacity { pages, page_len: 16, max_tokens: chunk, max_outputs: chunk, window: None, state: None };
    let config =
        RunnerConfig { capacity: capacity.with_slots(&model.graph, 1), kv_cells: KvCells::F16, threads: 2 };
    let mut runner = GraphRunner::new(backend, &model.graph, tensors, config, |_| ()).unwrap();
    let mut all = vec![];
    runner.logits(&recorded.tokens, |_, row| all.push(row.to_vec())).unwrap();
    recorded.positions.iter().map(|p| all[*p].clone()).collect()
}

fn furthest(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    let each = got.iter().flatten().zip(want.iter().flatten());
    each.map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}

fn mean_kl(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    want.iter().zip(got).map(|(want, got)| divergence(want, got)).sum::<f64>() / want.len() as f64
}

/// In f32 every logit is within 1e-4; on the CPU keys and values are halves.
#[test]
fn files_of_floats_have_the_recorded_logits() {
    for name in ["qwen35-tiny", "qwen35-eps", "qwen35-tiny-prism"] {
        let recorded = recorded(name);
        for chunk in [72, 7] {
            let off = furthest(&rows(&recorded, Box::new(Reference::new()), chunk), &recorded.logits);
            println!("{name}: reference in chunks of {chunk}: off by {off:.1e}");
            assert!(off < 1e-4, "{name}: off by {off:.2e} in chunks of {chunk}");
        }
        let cpu = rows(&recorded, Box::new(Cpu::new(2).unwrap()), 72);
        let (off, kl) = (furthest(&cpu, &recorded.logits), mean_kl(&cpu, &recorded.logits));
        println!("{name}: CPU off by {off:.1e}, mean KL {kl:.1e}");
        assert!(off < 5e-3 && kl < 1e-6, "{name}: CPU off by {off:.2e}, mean KL {kl:.2e}");
        assert!(
            rows(&recorded, Box::new(Cpu::new(1).unwrap()), 7) == cpu,
            "{name}: chunks change the logits"
        );
    }
}

#[test]
fn files_of_ternary_weights_have_the_recorded_logits() {
    for name in ["qwen35-prism-pq2_0", "qwen35-prism-v2-ptq1_0"] {
        let recorded = recorded(name);
        let off = furthest(&rows(&recorded, Box::new(Reference::new()), 72), &recorded.logits);
        let cpu = rows(&recorded, Box::new(Cpu::new(2).unwrap()), 72);
        let kl = mean_kl(&cpu, &recorded.logits);
        println!("{name}: reference off by {off:.1e}, CPU mean KL {kl:.1e}");
        assert!(off < 2e-4, "{name}: off by {off:.2e}");
        assert!(kl < 2e-3, "{name}: mean KL {kl:.2e}");
        assert!(
            rows(&recorded, Box::new(Cpu::new(1).unwrap()), 7) == cpu,
            "{name}: chunks change the logits"
        );
    }
}

/// Without its keys a rotated file would load and answer with garbage, so unknown ones are refused.
#[test]
fn rotations_that_are_not_known_are_refused() {
    let message = |edit: fn(&mut tern_formats::Metadata)| {
        let mut checkpoint = recorded("qwen35-tiny-prism").checkpoint;
        edit(&mut checkpoint.metadata);
        Model::open(&checkpoint, None).unwrap_err().to_string()
    };
    use tern_formats::Value::{Bool, String, Strings, Uint};
    assert_eq!(
        message(|m| drop(m.insert("prism.hadamard.version", Uint(3)))),
        "`prism.hadamard.version` is 3 with tied_output false: want 1 without it or 2 with it"
    );
    assert_eq!(
        message(|m| drop(m.insert("prism.scale", Bool(true)))),
        "`prism.scale` is not known: results without it would be wrong"
    );
    assert_eq!(
        message(|m| drop(m.insert("prism.hadamard.axis", String("output".into())))),
        "`prism.hadamard.axis` is `output`: want `input-last-dimension`"
    );
    assert_eq!(
        message(|m| drop(
            m.insert("prism.hadamard.weight_names", Strings(vec!["blk.0.ssm_norm.weight".into()]))
        )),
        "`prism.hadamard.weight_names` has `blk.0.ssm_norm.weight`, which cannot be rotated"
    );
    assert_eq!(
        message(|m| drop(
            m.insert("prism.hadamard.weight_names", Strings(vec!["blk.9.attn_q.weight".into()]))
        )),
        "blk.9.attn_q.weight: stored rotated, and not read by a `qwen35` model"
    );
    assert!(message(|m| drop(m.remove("prism.hadamard.version"))).contains("prism.hadamard.version"));
}
