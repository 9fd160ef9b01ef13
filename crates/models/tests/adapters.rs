//! Adapters on tiny models: logits that `transformers` and PEFT computed, steps that mix
//! adapters, and refused files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod recorded;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use tern_cpu::Cpu;
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_formats::gguf::Writer;
use tern_formats::{Access, Adapter, Checkpoint, Conversion, Metadata, Value as Key};
use tern_graph::{
    AdapterScales, AdapterSet, Backend, Bindings, KvCells, KvSpec, LayerGroup, Output, Reference, Reserve,
    Slice, Step,
};
use tern_models::Model;

use self::recorded::{error, logits, numbers, write_folder, write_tensors};

/// Tokens of a sequence: those of some models depend on it.
const CONTEXT: usize = 32;

/// A recording: the base model's folder, one per adapter, and the scales.
struct Recorded {
    json: Value,
    folder: TempDir,
}

impl Recorded {
    fn all() -> Vec<(String, Recorded)> {
        let folder = fixtures("adapters");
        let paths = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
        paths.sort();
        let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        paths.iter().map(|path| (name(path), Recorded::of(&name(path)))).collect()
    }

    fn of(name: &str) -> Recorded {
        let read = |kind: &str, name: &str| -> Value {
            let path = fixtures(kind).join(format!("{name}.json"));
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
        };
        let json = read("adapters", name);
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        std::fs::create_dir(&base).unwrap();
        write_folder(&base, &read("safetensors", json["base"].as_str().unwrap()), "F32");
        let recorded = Recorded { json, folder };
        for (i, adapter) in recorded.adapters().iter().enumerate() {
            let path = recorded.adapter(i);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("adapter_config.json"), adapter["config"].to_string()).unwrap();
            write_tensors(&path.join("adapter_model.safetensors"), &adapter["tensors"], "F32");
        }
        recorded
    }

    fn adapters(&self) -> &[Value] {
        self.json["adapters"].as_array().unwrap()
    }

    fn base(&self) -> PathBuf {
        self.folder.path().join("base")
    }

    fn adapter(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    fn scales(&self) -> AdapterScales {
        let scales = self.adapters().iter().map(|adapter| adapter["scale"].as_f64().unwrap() as f32);
        AdapterScales::new(&scales.collect::<Vec<_>>())
    }

    /// The recorded rows of a base model with these adapters.
    fn rows(&self, base: &Path, adapters: &[PathBuf], backend: Box<dyn Backend>) -> Vec<Vec<f32>> {
        let checkpoint = Checkpoint::open(base).unwrap();
        let (model, tensors) = Model::open(&checkpoint, Some(CONTEXT)).unwrap();
        let set = set(&model, &checkpoint.metadata, adapters).unwrap();
        let tokens: Vec<u32> = numbers(&self.json, "tokens").into_iter().map(|id| id as u32).collect();
        let capacity =
            Capacity { pages: 2, page_len: 16, max_tokens: 32, max_outputs: 32, window: None, state: None };
        let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 };
        let mut runner = GraphRunner::new(backend, &model.graph, tensors, config, |_| ()).unwrap();
        runner.add_adapters(&model.graph, &set, self.scales()).unwrap();
        let mut all = vec![];
        runner.logits(&tokens, |_, row| all.push(row.to_vec())).unwrap();
        numbers(&self.json, "positions").iter().map(|p| all[*p].clone()).collect()
    }
}

fn fixtures(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(kind)
}

/// Adapters for a model.
fn set(model: &Model, metadata: &Metadata, adapters: &[PathBuf]) -> Result<AdapterSet, String> {
    let open = |path: &PathBuf| Adapter::open(path, Access::default(), metadata);
    let opened = adapters.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let named: Vec<_> = opened.iter().map(|adapter| ("poet", adapter)).collect();
    model.adapters(&named).map_err(|e| e.to_string())
}

#[test]
fn logits_are_those_of_peft() {
    let mut wrong = vec![];
    for (name, recorded) in Recorded::all() {
        let adapters: Vec<_> = (0..recorded.adapters().len()).map(|i| recorded.adapter(i)).collect();
        let want = logits(&recorded.json);
        let backends: [(&str, f32, Box<dyn Backend>); 2] =
            [("reference", 1e-4, Box::new(Reference::new())), ("cpu", 2e-3, Box::new(Cpu::new(2).unwrap()))];
        for (backend, most, device) in backends {
            let off = error(&recorded.rows(&recorded.base(), &adapters, device), &want);
            println!("{name} on {backend}: off by {off:.1e}");
            if off.is_nan() || off > most {
                wrong.push(format!("{name} on {backend}: off by {off:.1e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn adapters_of_layers_on_two_devices_have_the_same_bits() {
    for (name, recorded) in Recorded::all() {
        let adapters: Vec<_> = (0..recorded.adapters().len()).map(|i| recorded.adapter(i)).collect();
        let rows = |backend: Box<dyn Backend>| recorded.rows(&recorded.base(), &adapters, backend);
        let graph = Model::open(&Checkpoint::open(&recorded.base()).unwrap(), Some(CONTEXT)).unwrap().0.graph;
        let want = rows(Box::new(Cpu::new(1).unwrap()));
        for border in graph.layer_borders() {
            let devices: Vec<Box<dyn Backend>> =
                vec![Box::new(Cpu::new(1).unwrap()), Box::new(Cpu::new(1).unwrap())];
            let group = LayerGroup::new(devices, &graph, &[border]).unwrap();
            assert!(rows(Box::new(group)) == want, "{name}: cut after {border}");
        }
    }
}

/// Writes an adapter as llama.cpp does: matrices as they are, and one alpha.
fn write_gguf(adapter: &Adapter, arch: &str, path: &Path, alpha: Option<f32>) {
    let mut metadata = Metadata::default();
    for (key, value) in
        [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", arch)]
    {
        metadata.insert(key, Key::String(value.into()));
    }
    if let Some(alpha) = alpha {
        metadata.insert("adapter.lora.alpha", Key::Float(alpha.into()));
    }
    let mut writer = Writer::new(metadata);
    let mut data = vec![];
    for (name, low_rank) in &adapter.linears {
        for (half, tensor) in [("lora_a", &low_rank.a), ("lora_b", &low_rank.b)] {
            writer.declare(&format!("{name}.{half}"), tensor.quant, &tensor.dims).unwrap();
            data.push(tensor.data());
        }
    }
    let mut file = vec![];
    writer.write_to(&mut file, |i, out| out.write_all(&data[i])).unwrap();
    std::fs::write(path, file).unwrap();
}

#[test]
fn the_same_adapter_in_gguf_on_the_same_model_in_gguf_has_the_same_logits() {
    for name in ["llama", "gemma3"] {
        let recorded = Recorded::of(name);
        let want = recorded.rows(&recorded.base(), &[recorded.adapter(0)], Box::new(Reference::new()));
        let source = Checkpoint::open(&recorded.base()).unwrap();
        let base = recorded.folder.path().join("base.gguf");
        Conversion::unchanged(&source).write(&source, &base, &mut |_| ()).unwrap();
        let peft = Adapter::open(&recorded.adapter(0), Access::default(), &source.metadata).unwrap();
        let gguf = recorded.folder.path().join("adapter.gguf");
        let arch = source.metadata.str("general.architecture").unwrap();
        write_gguf(&peft, arch, &gguf, Some(8.0));
        for path in [recorded.adapter(0), gguf] {
            assert!(recorded.rows(&base, &[path], Box::new(Reference::new())) == want, "{name}");
        }
    }
}

/// A model with two adapters, and programs without and with them.
struct Mixed {
    backend: Cpu,
    plain: tern_graph::Program,
    adapted: tern_graph::Program,
}

impl Mixed {
    fn new() -> Mixed {
        let recorded = Recorded::of("llama-two");
        let checkpoint = Checkpoint::open(&recorded.base()).unwrap();
        let (model, tensors) = Model::open(&checkpoint, Some(CONTEXT)).unwrap();
        let adapters = [recorded.adapter(0), recorded.adapter(1), recorded.adapter(0)];
        let set = set(&model, &checkpoint.metadata, &adapters).unwrap();
        let adapted = model.graph.with_adapters(set.count, &set.linears).unwrap();
        let mut backend = Cpu::new(2).unwrap();
        let tensors: Vec<_> = tensors.iter().map(|t| t.make().unwrap()).collect();
        let tensors = tensors.iter().chain(&set.tensors).zip(adapted.roles());
        let weights: Vec<_> = tensors.map(|(t, roles)| backend.store(t, roles).unwrap()).collect();
        let kv = KvSpec { layers: model.graph.kv.clone(), pages: 10, page_len: 16, ..KvSpec::default() };
        let kv = Some(backend.reserve(&Reserve::Kv(kv)).unwrap());
        let mut compile = |graph: &tern_graph::Graph| {
            let weights = &weights[..graph.weights.len()];
            let bindings = Bindings { weights, kv, state: None, max_tokens: 64, max_outputs: 64 };
            backend.compile(graph, &bindings).unwrap()
        };
        let (plain, adapted) = (compile(&model.graph), compile(&adapted));
        Mixed { backend, plain, adapted }
    }

    /// The logits of sequences in one step, each with its number of tokens and its adapters.
    fn step(&mut self, sequences: &[(usize, &[f32])], plain: bool) -> Vec<Vec<Vec<f32>>> {
        let mut step = Step::default();
        for (i, (len, scales)) in sequences.iter().enumerate() {
            let pages = vec![2 * i as u32, 2 * i as u32 + 1];
            let adapters = AdapterScales::new(scales);
            step.slices.push(Slice { adapters, ..Slice::new(*len, 0, pages) });
            step.tokens.extend((0..*len).map(|t| (t * 7 % 100) as u32 + 3));
        }
        let rows = (0..step.tokens.len()).map(|row| Output { row, sample: None, logits: true });
        step.outputs = rows.collect();
        let program = if plain { self.plain } else { self.adapted };
        let ticket = self.backend.submit(program, step).unwrap();
        let rows = self.backend.collect(ticket).unwrap().rows;
        let mut rows = rows.into_iter().map(|row| row.logits.unwrap());
        sequences.iter().map(|(len, _)| rows.by_ref().take(*len).collect()).collect()
    }
}

#[test]
fn sequences_with_different_adapters_and_none_share_a_step() {
    let mut model = Mixed::new();
    let sequences: [(usize, &[f32]); 5] =
        [(9, &[1.0]), (1, &[]), (12, &[0.0, 1.0]), (3, &[0.5, 0.0, 0.5]), (12, &[])];
    let together = model.step(&sequences, false);
    for (sequence, together) in sequences.iter().zip(&together) {
        let alone = model.step(&[*sequence], false).remove(0);
        assert!(alone == *together, "{sequence:?}: other logits than alone");
        if sequence.1.is_empty() {
            assert!(
                model.step(&[*sequence], true).remove(0) == *together,
                "other logits than without adapters"
            );
        }
    }
    // the third adapter is the first one again
    let halves = error(&together[3], &model.step(&[(3, &[1.0])], false)[0]);
    assert!(halves < 1e-4, "half of an adapter twice: off by {halves:.1e}");
    let changed = error(&together[2], &together[4]);
    assert!(changed > 0.1, "an adapter changes logits by {changed:.1e}");
    let message = model.step_error(&[0.0, 0.0, 0.0, 1.0]);
    assert_eq!(message, "adapter 3 is outside the 3 of the program");
}

impl Mixed {
    fn step_error(&mut self, scales: &[f32]) -> String {
        let slice = Slice { adapters: AdapterScales::new(scales), ..Slice::new(1, 0, vec![0]) };
        let step = Step { tokens: vec![3], slices: vec![slice], ..Step::default() };
        self.backend.submit(self.adapted, step).unwrap_err().to_string()
    }
}

/// What is wrong with the first adapter of a recording after `change` of its folder, without the path.
fn refused(name: &str, change: impl Fn(&Path, &mut Value, &mut Value)) -> String {
    let recorded = Recorded::of(name);
    let path = recorded.adapter(0);
    let (mut config, mut tensors) =
        (recorded.adapters()[0]["config"].clone(), recorded.adapters()[0]["tensors"].clone());
    change(&path, &mut config, &mut tensors);
    if path.join("adapter_config.json").exists() {
        std::fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
    }
    if path.join("adapter_model.safetensors").exists() {
        write_tensors(&path.join("adapter_model.safetensors"), &tensors, "F32");
    }
    let checkpoint = Checkpoint::open(&recorded.base()).unwrap();
    let (model, _) = Model::open(&checkpoint, Some(CONTEXT)).unwrap();
    let text = set(&model, &checkpoint.metadata, std::slice::from_ref(&path)).unwrap_err();
    text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).into()
}

#[test]
fn an_adapter_of_peft_that_cannot_be_used_is_refused_by_name() {
    let config = |key: &str, value: Value| refused("llama", |_, config, _| config[key] = value.clone());
    let tensor = |key: &str, value: Value| refused("llama", |_, _, tensors| tensors[0][key] = value.clone());
    let module = "base_model.model.model.layers.0";
    let renamed = |from: &str, to: &str| {
        refused("llama", |_, _, tensors| {
            for tensor in tensors.as_array_mut().unwrap() {
                tensor["name"] = tensor["name"].as_str().unwrap().replace(from, to).into();
            }
        })
    };
    let cases = [
        (
            config("peft_type", json!("ADALORA")),
            "adapter_config.json: adapters of type ADALORA are not supported, want LORA",
        ),
        (config("use_dora", json!(true)), "adapter_config.json: `use_dora` of true is not supported"),
        (
            config("init_lora_weights", json!("pissa")),
            "adapter_config.json: `init_lora_weights` of \"pissa\" is not supported",
        ),
        (config("bias", json!("all")), "adapter_config.json: `bias` of \"all\" is not supported"),
        (
            config("modules_to_save", json!(["lm_head"])),
            "adapter_config.json: `modules_to_save` of [\"lm_head\"] is not supported",
        ),
        (
            config("lora_alpha", json!("x")),
            "adapter_config.json: `lora_alpha`: want a number, file has \"x\"",
        ),
        (
            config("alpha_pattern", json!({ ".*q_proj": 3 })),
            "adapter_config.json: `alpha_pattern`: the pattern .*q_proj is not supported",
        ),
        (
            refused("llama", |path, _, _| std::fs::remove_file(path.join("adapter_config.json")).unwrap()),
            "the folder has no adapter_config.json: want a GGUF adapter, or a folder of PEFT",
        ),
        (
            refused("llama", |path, _, _| {
                std::fs::remove_file(path.join("adapter_model.safetensors")).unwrap()
            }),
            "the folder has no adapter_model.safetensors",
        ),
        (refused("llama", |_, _, tensors| *tensors = json!([])), "the adapter has no tensors"),
        (
            tensor("name", json!(format!("{module}.mlp.down_proj.lora_magnitude_vector"))),
            "tensor `base_model.model.model.layers.0.mlp.down_proj.lora_magnitude_vector` is not supported in an adapter",
        ),
        (
            refused("llama", |_, _, tensors| drop(tensors.as_array_mut().unwrap().remove(0))),
            "module `model.layers.0.mlp.down_proj`: want lora_A and lora_B, file has one of them",
        ),
        (
            tensor("shape", json!([5, 96])),
            "blk.0.ffn_down.weight: want A of [rank, columns] and B of [rows, rank], file has [5, 96] and [64, 4]",
        ),
        (
            tensor("shape", json!([4, 95])),
            "adapter poet: blk.0.ffn_down.weight: want an adapter of [64, 96], file has one of [64, 95]",
        ),
        (renamed("q_proj", "query"), "module `model.layers.0.self_attn.query` is unknown in a `llama` model"),
        (
            renamed("layers.2.", "layers.7."),
            "adapter poet: blk.7.ffn_down.weight: this `llama` model has no linear of this name",
        ),
        (
            renamed("model.layers.0.mlp.down_proj", "model.embed_tokens"),
            "adapter poet: token_embd.weight: adapters of embedding tables are not supported",
        ),
        (
            renamed("layers.0.mlp.down_proj", "layers.0.block_sparse_moe.experts.3.w1"),
            "module `model.layers.0.block_sparse_moe.experts.3.w1`: adapters of experts are not supported",
        ),
    ];
    for (got, want) in cases {
        assert_eq!(got, want);
    }
}

#[test]
fn a_gguf_file_that_is_no_adapter_of_the_model_is_refused() {
    let recorded = Recorded::of("llama");
    let checkpoint = Checkpoint::open(&recorded.base()).unwrap();
    let peft = Adapter::open(&recorded.adapter(0), Access::default(), &checkpoint.metadata).unwrap();
    let path = recorded.folder.path().join("adapter.gguf");
    let message = |path: &Path| {
        let text = Adapter::open(path, Access::default(), &checkpoint.metadata).unwrap_err().to_string();
        text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_string()
    };
    write_gguf(&peft, "qwen3", &path, Some(8.0));
    assert_eq!(message(&path), "an adapter of a `qwen3` model: the model is `llama`");
    write_gguf(&peft, "llama", &path, None);
    assert_eq!(message(&path), "metadata key `adapter.lora.alpha` is missing");
    let base = recorded.folder.path().join("base.gguf");
    Conversion::unchanged(&checkpoint).write(&checkpoint, &base, &mut |_| ()).unwrap();
    assert_eq!(message(&base), "not an adapter: `general.type` is missing, want adapter");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 9]).unwrap();
    assert!(message(&path).contains("exceed the"), "{}", message(&path));
    assert!(message(&recorded.folder.path().join("none.gguf")).contains("No such file"));
}
