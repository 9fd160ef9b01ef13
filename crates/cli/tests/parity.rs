//! What llama.cpp, or `transformers`, said about the same files, position by position, beside what Tern says.
//!
//! Fixtures are recorded by `scripts/oracle/llama/models.py` and `scripts/oracle/transformers/bitnet.py`.
//! Models that are not in the repository are looked for in the folder named by TERN_TEST_DATA and reported as
//! skipped without it.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tern::cpu::Cpu;
use tern::engine::{AdapterScales, Capacity, GraphRunner, RunnerConfig};
use tern::formats::{Access, Adapter, Checkpoint};
use tern::graph::{Backend, KvCells, Reference, log_sum_exp};
use tern::models::{Model, Synth};
use tern::text::Tokenizer;

/// A recorded answer: the best tokens after one position.
struct Position {
    ids: Vec<usize>,
    logprobs: Vec<f64>,
}

/// How two sets of answers differ.
#[derive(Debug, Default)]
struct Difference {
    kl: f64,
    positions: usize,
    clear: usize,
    clear_agree: usize,
}

impl Difference {
    fn mean_kl(&self) -> f64 {
        self.kl / self.positions.max(1) as f64
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The model of a fixture, if it is available. Tiny random ones are generated as by `tern synth`.
fn model_file(name: &str, made: &Path) -> Option<PathBuf> {
    let stem = name.strip_suffix(".gguf")?;
    if let Some((shape, format)) = stem.rsplit_once('-').filter(|_| stem.starts_with("tiny-")) {
        let (mut shape, quant) = Synth::parse(&format!("{shape}:{format}")).unwrap();
        let vocab = Checkpoint::open(&repository().join("crates/tern/models/tern-stories-1bit.gguf"))
            .unwrap()
            .metadata;
        shape.vocab = vocab.strings("tokenizer.ggml.tokens").unwrap().len();
        let (path, mut bytes) = (made.join(name), vec![]);
        Synth::new(&shape, quant, None).unwrap().write(&vocab, &mut bytes, |_, _| ()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        return Some(path);
    }
    let mut folders = vec![repository().join("crates/tern/models")];
    folders.extend(std::env::var_os("TERN_TEST_DATA").map(PathBuf::from));
    folders.into_iter().map(|f| f.join(name)).find(|p| p.exists())
}

fn fixture(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn positions(text: &Value) -> Vec<Position> {
    let each = |p: &Value| Position {
        ids: p[0].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect(),
        logprobs: p[1].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect(),
    };
    text["top"].as_array().unwrap().iter().map(each).collect()
}

/// Uses the adapters of a fixture, if it has some.
fn adapt(runner: &mut GraphRunner, model: &Model, checkpoint: &Checkpoint, recorded: &Value) {
    let Some(adapters) = recorded["lora"].as_array() else { return };
    let open = |adapter: &Value| {
        let path = repository().join("fixtures/adapters/gguf").join(adapter["file"].as_str().unwrap());
        Adapter::open(&path, Access::default(), &checkpoint.metadata).unwrap()
    };
    let opened: Vec<Adapter> = adapters.iter().map(open).collect();
    let named: Vec<_> = opened.iter().map(|adapter| ("recorded", adapter)).collect();
    let scales: Vec<f32> = adapters.iter().map(|a| a["scale"].as_f64().unwrap() as f32).collect();
    let set = model.adapters(&named).unwrap();
    runner.add_adapters(&model.graph, &set, AdapterScales::new(&scales)).unwrap();
}

/// All logits of a text on a backend.
fn logits(
    checkpoint: &Checkpoint,
    backend: Box<dyn Backend>,
    tokens: &[u32],
    recorded: &Value,
) -> Vec<Vec<f32>> {
    let (model, tensors) = Model::open(checkpoint, None).unwrap();
    let pages = tokens.len().div_ceil(16);
    let capacity =
        Capacity { pages, page_len: 16, max_tokens: 32, max_outputs: 32, window: None, state: None };
    let capacity = capacity.with_slots(&model.graph, 1);
    let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 };
    let mut runner = GraphRunner::new(backend, &model.graph, tensors, config, |_| ()).unwrap();
    adapt(&mut runner, &model, checkpoint, recorded);
    let mut rows = vec![];
    runner.logits(tokens, |_, row| rows.push(row.to_vec())).unwrap();
    rows
}

/// Adds one position: KL over the recorded top tokens, with all other tokens as one.
fn compare(difference: &mut Difference, want: &Position, row: &[f32]) {
    let log_sum = f64::from(log_sum_exp(row));
    let ours = |id: usize| f64::from(row[id]) - log_sum;
    let (mut rest_want, mut rest_ours) = (1.0, 1.0);
    for (&id, &p) in want.ids.iter().zip(&want.logprobs) {
        difference.kl += p.exp() * (p - ours(id));
        rest_want -= p.exp();
        rest_ours -= ours(id).exp();
    }
    if rest_want > 1e-6 && rest_ours > 1e-9 {
        difference.kl += rest_want * (rest_want / rest_ours).ln();
    }
    difference.positions += 1;
    if want.logprobs[0] - want.logprobs[1] > 0.5 {
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        difference.clear += 1;
        difference.clear_agree += usize::from(best == want.ids[0]);
    }
}

/// A row of logits in the shape of a recorded position.
fn position(row: &[f32]) -> Position {
    let top = tern::graph::top_logprobs(row, 256);
    Position {
        ids: top.iter().map(|t| t.0 as usize).collect(),
        logprobs: top.iter().map(|t| f64::from(t.1)).collect(),
    }
}

/// Runs `check` on every fixture whose model is available.
fn for_each_model(exact: bool, mut check: impl FnMut(&str, &Value, &Checkpoint)) {
    let (mut seen, made) = (0, tempfile::tempdir().unwrap());
    let folders = ["fixtures/llama", "fixtures/transformers"].map(|folder| repository().join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut paths: Vec<PathBuf> = files.map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name.ends_with("-exact") != exact {
            continue;
        }
        let recorded = fixture(&path);
        let file = recorded["model"].as_str().unwrap();
        let Some(model) = model_file(file, made.path()) else {
            println!("skipped: {name} ({file} is not in TERN_TEST_DATA)");
            continue;
        };
        let hash = Sha256::digest(std::fs::read(&model).unwrap());
        let hash: String = hash.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hash, recorded["sha256"].as_str().unwrap(), "{file} is not the file that was recorded");
        check(name, &recorded, &Checkpoint::open(&model).unwrap());
        seen += 1;
    }
    assert!(seen > 0, "the embedded model's fixture must be there");
}

#[test]
fn the_cpu_agrees_with_llama_cpp() {
    for_each_model(false, |name, recorded, checkpoint| {
        let mut all = Difference::default();
        for text in recorded["texts"].as_array().unwrap() {
            let tokens = ids(&text["tokens"]);
            let rows = logits(checkpoint, Box::new(Cpu::new(2).unwrap()), &tokens, recorded);
            for (want, row) in positions(text).iter().zip(&rows) {
                compare(&mut all, want, row);
            }
        }
        println!(
            "{name}: mean KL {:.2e}, same top {} of {} clear positions",
            all.mean_kl(),
            all.clear_agree,
            all.clear
        );
        // llama.cpp rounds activations to 8 bits, which puts it 6.0e-3 from exact arithmetic on this model
        let most = if name == "gemma-3-270m" { 7e-3 } else { 5e-3 };
        assert!(all.mean_kl() < most, "{name}: {all:?}");
        assert!(all.clear_agree as f64 >= 0.99 * all.clear as f64, "{name}: {all:?}");
    });
}

#[test]
fn the_cpu_agrees_with_the_reference_and_the_reference_with_exact_arithmetic() {
    for_each_model(true, |name, recorded, checkpoint| {
        let (mut to_reference, mut to_exact) = (Difference::default(), Difference::default());
        for text in recorded["texts"].as_array().unwrap() {
            let wanted = positions(text);
            let tokens = &ids(&text["tokens"])[..wanted.len()];
            let reference = logits(checkpoint, Box::new(Reference::new()), tokens, recorded);
            let cpu = logits(checkpoint, Box::new(Cpu::new(2).unwrap()), tokens, recorded);
            for ((want, exact), row) in wanted.iter().zip(&reference).zip(&cpu) {
                compare(&mut to_exact, want, exact);
                compare(&mut to_reference, &position(exact), row);
            }
        }
        println!(
            "{name}: reference to exact {:.2e}, CPU to reference {:.2e}",
            to_exact.mean_kl(),
            to_reference.mean_kl()
        );
        assert!(to_exact.mean_kl() < 1e-4, "{name}: {to_exact:?}");
        assert!(to_reference.mean_kl() < 1e-4, "{name}: {to_reference:?}");
        assert_eq!(to_exact.clear_agree, to_exact.clear, "{name}: {to_exact:?}");
    });
}

#[test]
fn texts_are_tokenized_as_recorded() {
    for_each_model(false, |name, recorded, checkpoint| {
        let tokenizer = Tokenizer::from_metadata(&checkpoint.metadata).unwrap();
        for text in recorded["texts"].as_array().unwrap() {
            let got = tokenizer.encode(text["text"].as_str().unwrap(), true, false);
            assert_eq!(got, ids(&text["tokens"]), "{name}: {}", text["name"]);
        }
        for greedy in recorded["greedy"].as_array().unwrap() {
            let got = tokenizer.encode(greedy["prompt"].as_str().unwrap(), true, true);
            assert_eq!(got, ids(&greedy["tokens"]), "{name}: {}", greedy["name"]);
        }
    });
}
