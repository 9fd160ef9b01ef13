//! Folders of safetensors: tiny models of every architecture have the logits that
//! `transformers` computed for them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod recorded;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tern_cpu::Cpu;
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_formats::quantize::{Quantization, Recipe};
use tern_formats::{Checkpoint, Conversion, FolderExport};
use tern_graph::{
    Backend, Bindings, HostTensor, KvCells, KvSpec, Output, Pooling, Reference, Reserve, Slice, Step,
};
use tern_models::{Model, VectorKind};

use self::recorded::{error, logits, numbers, tokenizer, values, write_folder};

/// What `scripts/oracle/transformers/architectures.py` recorded for one model.
struct Recorded {
    json: Value,
}

impl Recorded {
    fn all() -> Vec<(String, Recorded)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/safetensors");
        let mut paths: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: PathBuf| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, Recorded { json: serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() })
        };
        paths.into_iter().map(read).collect()
    }

    /// Writes the folder, with weights in this dtype.
    fn write(&self, folder: &Path, dtype: &str) {
        write_folder(folder, &self.json, dtype);
    }

    fn numbers(&self, key: &str) -> Vec<usize> {
        numbers(&self.json, key)
    }

    fn logits(&self) -> Vec<Vec<f32>> {
        logits(&self.json)
    }
}

/// Tokens of a sequence: those of some models depend on it.
const CONTEXT: usize = 32;

/// The recorded rows of a folder's model, in f32.
fn rows(folder: &Path, recorded: &Recorded) -> Result<Vec<Vec<f32>>, String> {
    rows_on(Box::new(Reference::new()), folder, recorded)
}

fn rows_on(backend: Box<dyn Backend>, folder: &Path, recorded: &Recorded) -> Result<Vec<Vec<f32>>, String> {
    let checkpoint = Checkpoint::open(folder).map_err(|e| e.to_string())?;
    let open = |pooling| Model::open_pooled(&checkpoint, Some(CONTEXT), pooling).map_err(|e| e.to_string());
    let (mut model, mut tensors) = open(None)?;
    let tokens: Vec<u32> = recorded.numbers("tokens").into_iter().map(|id| id as u32).collect();
    if let Some(vectors) = model.vectors {
        if vectors.kind == VectorKind::Embedding {
            (model, tensors) = open(Some(Pooling::None))?; // a row per token
        }
        let tensors: Vec<_> = tensors.iter().map(|t| t.make().unwrap()).collect();
        return Ok(vectors_on(backend, &model, &tensors, tokens, &recorded.numbers("positions")));
    }
    let capacity =
        Capacity { pages: 2, page_len: 16, max_tokens: 32, max_outputs: 32, window: None, state: None };
    let config =
        RunnerConfig { capacity: capacity.with_slots(&model.graph, 1), kv_cells: KvCells::F32, threads: 2 };
    let mut runner =
        GraphRunner::new(backend, &model.graph, tensors, config, |_| ()).map_err(|e| e.to_string())?;
    let mut all = vec![];
    runner.logits(&tokens, |_, row| all.push(row.to_vec())).map_err(|e| e.to_string())?;
    Ok(recorded.numbers("positions").iter().map(|p| all[*p].clone()).collect())
}

/// The rows of an encoder at these positions, or the scores of a classifier.
fn vectors_on(
    mut backend: Box<dyn Backend>,
    model: &Model,
    tensors: &[HostTensor],
    tokens: Vec<u32>,
    positions: &[usize],
) -> Vec<Vec<f32>> {
    let graph = &model.graph;
    let weights = tensors.iter().zip(graph.roles());
    let weights: Vec<_> = weights.map(|(t, roles)| backend.store(t, roles).unwrap()).collect();
    let (layers, cells) = (graph.kv.clone(), KvCells::F32);
    let kv = KvSpec { layers, cells, pages: 2, page_len: 16, window: None };
    let kv = Some(backend.reserve(&Reserve::Kv(kv)).unwrap());
    let bindings = Bindings { weights: &weights, kv, state: None, max_tokens: 32, max_outputs: 32 };
    let program = backend.compile(graph, &bindings).unwrap();
    let rows = match model.vectors.unwrap().pooling {
        Pooling::None => positions.to_vec(),
        pooling => pooling.after_graph().rows(0..tokens.len()).collect(),
    };
    let outputs = rows.into_iter().map(|row| Output { row, sample: None, logits: true }).collect();
    let slices = vec![Slice::new(tokens.len(), 0, vec![0, 1])];
    let ticket = backend.submit(program, Step { tokens, slices, outputs, ..Step::default() }).unwrap();
    backend.collect(ticket).unwrap().rows.into_iter().map(|row| row.logits.unwrap()).collect()
}

#[test]
fn logits_are_those_of_transformers() {
    let mut wrong = vec![];
    for (name, recorded) in Recorded::all() {
        let folder = tempfile::tempdir().unwrap();
        recorded.write(folder.path(), "F32");
        match rows(folder.path(), &recorded) {
            Ok(rows) => {
                let off = error(&rows, &recorded.logits());
                let cpu = rows_on(Box::new(Cpu::new(2).unwrap()), folder.path(), &recorded).unwrap();
                let cpu = error(&cpu, &recorded.logits());
                println!("{name}: off by {off:.1e}, on the CPU {cpu:.1e}");
                let most = if SENSITIVE.contains(&name.as_str()) { 5e-3 } else { 1e-4 };
                if !(off < 1e-4 && cpu < most) {
                    wrong.push(format!("{name}: off by {off:.1e}, on the CPU {cpu:.1e}"));
                }
            }
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The name of one file in GGUF, whose folder is `bitnet`.
const FILE_ONLY: &str = "bitnet-b1.58";

/// Those whose folders have towers (`images.rs`).
const WITH_IMAGES: [&str; 2] = ["qwen2vl", "qwen3vlmoe"];

#[test]
fn every_architecture_has_a_folder() {
    let mut found: BTreeSet<String> =
        [FILE_ONLY].iter().chain(&WITH_IMAGES).map(|name| name.to_string()).collect();
    for (_, recorded) in Recorded::all() {
        let folder = tempfile::tempdir().unwrap();
        recorded.write(folder.path(), "BF16");
        let source = Checkpoint::open(folder.path()).unwrap();
        found.insert(source.metadata.str("general.architecture").unwrap().into());
    }
    assert_eq!(found, tern_models::ALL.iter().map(|arch| arch.name.into()).collect());
}

/// Models of random weights in which a rounding changes much: another expert is chosen, scores are not
/// scaled, or the result is near zero.
const SENSITIVE: [&str; 4] = ["gpt-oss", "gemma4", "gemma4moe", "modern-bert-rank"];

#[test]
fn a_converted_folder_has_the_same_logits() {
    let mut wrong = vec![];
    for (name, recorded) in Recorded::all() {
        let folder = tempfile::tempdir().unwrap();
        recorded.write(folder.path(), "F32");
        let source = Checkpoint::open(folder.path()).unwrap();
        let gguf = folder.path().join("model.gguf");
        let before = rows(folder.path(), &recorded).unwrap();
        Conversion::unchanged(&source).write(&source, &gguf, &mut |_| ()).unwrap();
        if rows(folder.path(), &recorded).unwrap() != before {
            wrong.push(format!("{name}: the file in F32 has other logits"));
        }
        std::fs::remove_file(&gguf).unwrap();
        let halves = Quantization::pure(Recipe::named("F16").unwrap());
        halves.conversion(&source, &halves.formats(&source)).write(&source, &gguf, &mut |_| ()).unwrap();
        let off = error(&rows(folder.path(), &recorded).unwrap(), &before);
        println!("{name}: off by {off:.1e} in F16");
        let most = if SENSITIVE.contains(&name.as_str()) { 0.1 } else { 5e-3 };
        if off.is_nan() || off > most {
            wrong.push(format!("{name}: off by {off:.1e} in F16"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The error of opening a folder and its model.
fn refusal(folder: &Path) -> String {
    let opened = Checkpoint::open(folder).map_err(|e| e.to_string());
    let built = opened.and_then(|source| Model::open(&source, None).map_err(|e| e.to_string()).map(drop));
    built.unwrap_err().replace(&format!("{}: ", folder.display()), "")
}

#[test]
fn variants_that_are_not_known_are_refused_by_name() {
    let all: BTreeMap<_, _> = Recorded::all().into_iter().collect();
    for (name, key, value, want) in [
        (
            "jina-bert",
            "position_embedding_type",
            json!(null),
            "config.json: `position_embedding_type`: want alibi, file has nothing",
        ),
        (
            "jina-bert",
            "feed_forward_type",
            json!("reglu"),
            "config.json: `feed_forward_type`: want geglu, file has \"reglu\"",
        ),
        (
            "jina-bert",
            "intermediate_size",
            json!(95),
            "tensor `layers.0.mlp.gated_layers.weight`: want [190, 64], file has [192, 64]",
        ),
        (
            "jina-bert-rank",
            "num_attention_heads",
            json!(12),
            "config.json: `num_attention_heads`: want a power of two in a JinaBert reranker, whose slopes of other heads \
             are not known, file has 12",
        ),
        ("jina-v3-own", "truncate_dim", json!(32), "config.json: `truncate_dim`: want null, file has 32"),
        (
            "nomic-bert-moe",
            "activation_function",
            json!("swiglu"),
            "config.json: `activation_function`: want gelu, as experts have it, file has \"swiglu\"",
        ),
        (
            "nomic-bert-moe",
            "moe_normalize_expert_weights",
            json!(true),
            "config.json: `moe_normalize_expert_weights`: want false, file has true",
        ),
        (
            "nomic-bert-moe",
            "num_shared_experts",
            json!(1),
            "config.json: `num_shared_experts`: want 0, file has 1",
        ),
        (
            "nomic-bert-moe",
            "num_experts",
            json!(5),
            "tensor `layers.1.mlp.experts.mlp.w1`: want [480, 64], file has [384, 64]",
        ),
        (
            "llama-embed",
            "pooling",
            json!("weighted_avg"),
            "config.json: `pooling`: want avg, cls or last, file has \"weighted_avg\"",
        ),
        (
            "modern-bert-rank",
            "classifier_pooling",
            json!("max"),
            "config.json: `classifier_pooling`: want cls or mean, file has \"max\"",
        ),
        (
            "distilbert",
            "activation",
            json!("relu"),
            "config.json: `activation`: want gelu, file has \"relu\"",
        ),
        (
            "qwen2",
            "is_causal",
            json!(false),
            "`qwen2.attention.causal` is false: `qwen2` models are supported with causal attention",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        all[name].write(folder.path(), "BF16");
        let mut config = all[name].json["config"].clone();
        config[key] = value;
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        assert_eq!(refusal(folder.path()), want, "{name}");
    }
}

/// `transformers` has no separate class for it: `is_causal` of a decoder without a head.
#[test]
fn a_llama_in_both_directions_has_two_names() {
    let (_, recorded) = Recorded::all().into_iter().find(|(name, _)| name == "llama-embed").unwrap();
    let folder = tempfile::tempdir().unwrap();
    recorded.write(folder.path(), "F32");
    let mut config = recorded.json["config"].clone();
    (config["architectures"], config["is_causal"]) = (json!(["LlamaModel"]), json!(false));
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert!(error(&rows(folder.path(), &recorded).unwrap(), &recorded.logits()) < 1e-4);
    let source = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(source.metadata.str("general.architecture").unwrap(), "llama-embed");
}

#[test]
fn a_classifier_of_modern_bert_reads_the_mean_or_the_first_token() {
    let (_, recorded) = Recorded::all().into_iter().find(|(name, _)| name == "modern-bert-rank-cls").unwrap();
    let folder = tempfile::tempdir().unwrap();
    recorded.write(folder.path(), "F32");
    let mut source = Checkpoint::open(folder.path()).unwrap();
    let pooling =
        |source: &Checkpoint| Model::open(source, None).map(|(model, _)| model.vectors.unwrap().pooling);
    assert_eq!(pooling(&source).unwrap(), Pooling::Cls);
    let key = "modern-bert.classifier.pooling_type";
    source.metadata.insert(key, tern_formats::Value::Uint(1));
    assert_eq!(pooling(&source).unwrap(), Pooling::Mean);
    source.metadata.insert(key, tern_formats::Value::Uint(3));
    assert_eq!(pooling(&source).unwrap_err().to_string(), format!("`{key}` is 3: want 1 or 2"));
}

/// Models whose folders are written; the others are read only, and refused by the name of their architecture.
const WRITTEN: [&str; 18] = [
    "ernie", "gemma2", "gemma3", "glm4", "granite", "hunyuan", "llama", "mistral", "mixtral", "olmo2",
    "olmo3", "phi3", "phi4", "qwen2", "qwen3", "qwen3moe", "seed-oss", "smollm3",
];

/// Folder, GGUF file, folder: the last one is another's that `transformers` loads
/// (`scripts/oracle/checks/safetensors_folders.py`).
#[test]
fn a_folder_of_a_file_has_the_same_logits() {
    let mut wrong = vec![];
    for (name, recorded) in Recorded::all() {
        let folder = tempfile::tempdir().unwrap();
        recorded.write(folder.path(), "F32");
        let gguf = folder.path().join("model.gguf");
        let source = Checkpoint::open(folder.path()).unwrap();
        Conversion::unchanged(&source).write(&source, &gguf, &mut |_| ()).unwrap();
        let model = Checkpoint::open(&gguf).unwrap();
        let out = folder.path().join("exported");
        let export = FolderExport { model: &model, floats: None, max_file: 1 << 15 };
        match (export.write(&out, &mut |_| ()), WRITTEN.contains(&name.as_str())) {
            (Ok(written), true) => {
                assert!(written.files > 1, "{name}: small files");
                let off = error(&rows(&out, &recorded).unwrap(), &recorded.logits());
                println!("{name}: off by {off:.1e}");
                if off.is_nan() || off > 1e-4 {
                    wrong.push(format!("{name}: off by {off:.1e}"));
                }
            }
            (Err(e), false) if e.to_string().contains(" are not written; those of llama, qwen2, ") => {}
            (Ok(_), false) => wrong.push(format!("{name}: is written")),
            (Err(e), _) => wrong.push(format!("{name}: {e}")),
        }
        let mut left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.all(|name| !name.to_string_lossy().contains(".part")), "{name}: a part is left");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One tensor of a file.
struct Stored {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// A linear as GPTQ stores it, and the same weights decoded.
struct Quantised {
    parts: Vec<Stored>,
    decoded: Stored,
}

fn quantised(name: &str, shape: &[u64]) -> Quantised {
    let (rows, cols, group) = (shape[0] as usize, shape[1] as usize, 32);
    let groups = cols / group;
    let codes: Vec<u32> = values(name, (rows * cols) as u64, 8.0, 8.0).map(|x| x as u32 & 15).collect();
    let scale = |group: usize, row: usize| 0.015_625 * (1 + (group + row) % 3) as f32; // exact in f16
    let mut words = vec![0u32; cols / 8 * rows]; // [columns / 8, rows]
    let mut decoded = vec![];
    for row in 0..rows {
        for col in 0..cols {
            let code = codes[row * cols + col];
            words[col / 8 * rows + row] |= code << (4 * (col % 8));
            decoded.extend(((code as f32 - 8.0) * scale(col / group, row)).to_le_bytes());
        }
    }
    let halves = |x: f32| (((x.to_bits() >> 13) - (112 << 10)) as u16).to_le_bytes();
    let scales = (0..groups).flat_map(|g| (0..rows).flat_map(move |r| halves(scale(g, r)))).collect();
    let stem = name.strip_suffix(".weight").unwrap();
    let zeros = vec![0x77u8; groups * rows / 2];
    let stored = |part: &str, dtype, shape: [usize; 2], bytes| {
        let shape = shape.map(|n| n as u64).to_vec();
        Stored { name: format!("{stem}.{part}"), dtype, shape, bytes }
    };
    let parts = vec![
        stored("qweight", "I32", [cols / 8, rows], words.iter().flat_map(|w| w.to_le_bytes()).collect()),
        stored("qzeros", "I32", [groups, rows / 8], zeros),
        stored("scales", "F16", [groups, rows], scales),
    ];
    Quantised { parts, decoded: stored("weight", "F32", [rows, cols], decoded) }
}

/// A model of four-bit codes has the logits of the same weights in f32: rows of heads
/// move as they do in floats.
#[test]
fn a_quantised_folder_has_the_logits_of_its_decoded_weights() {
    for (name, recorded) in Recorded::all()
        .into_iter()
        .filter(|(name, _)| ["llama", "qwen3moe", "granite"].contains(&name.as_str()))
    {
        let mut logits = vec![];
        for packed in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let mut config = recorded.json["config"].clone();
            if packed {
                config["quantization_config"] =
                    json!({ "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false });
            }
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            std::fs::write(folder.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
            let (mut header, mut data) = (serde_json::Map::new(), vec![]);
            let mut put = |Stored { name, dtype, shape, bytes }| {
                let range = [data.len(), data.len() + bytes.len()];
                data.extend(bytes);
                header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": range }));
            };
            for tensor in recorded.json["tensors"].as_array().unwrap() {
                let name = tensor["name"].as_str().unwrap();
                let shape: Vec<u64> =
                    tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
                let (gain, offset) =
                    (tensor["gain"].as_f64().unwrap() as f32, tensor["offset"].as_f64().unwrap() as f32);
                if !name.ends_with("_proj.weight") {
                    let count = shape.iter().product();
                    let bytes = values(name, count, gain, offset).flat_map(f32::to_le_bytes).collect();
                    put(Stored { name: name.into(), dtype: "F32", shape, bytes });
                    continue;
                }
                let Quantised { parts, decoded } = quantised(name, &shape);
                let stored = if packed { parts } else { vec![decoded] };
                stored.into_iter().for_each(&mut put);
            }
            let header = Value::Object(header).to_string();
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend(header.as_bytes());
            file.extend(data);
            std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
            logits.push(rows(folder.path(), &recorded).unwrap());
        }
        let off = error(&logits[0], &logits[1]);
        assert!(off < 1e-6, "{name}: off by {off:.1e}");
    }
}
