//! Loading a folder of safetensors takes the memory of a few tensors, however its weights are stored.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "the weights are zeros")]
mod recorded;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_formats::Checkpoint;
use tern_graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Graph, HostTensor, KvCells, Program, Reserve, Roles,
    Step, StepOutput, Ticket,
};
use tern_models::Model;

/// The system's allocator, which counts.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all memory is that of `System`, whose contract is this one's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        MOST.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that `work` has allocated at most at once, and its result.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.load(Ordering::SeqCst);
    MOST.store(before, Ordering::SeqCst);
    let result = work();
    (MOST.load(Ordering::SeqCst) - before, result)
}

/// A device that keeps no tensor in the host's memory, as a GPU.
struct Device;

impl Backend for Device {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "device".into(), memory_total: 0, memory_free: 0, step_tokens: 1 }
    }

    fn store(&mut self, _: &HostTensor, _: Roles) -> Result<Buffer, BackendError> {
        Ok(Buffer(0))
    }

    fn reserve(&mut self, _: &Reserve) -> Result<Buffer, BackendError> {
        Ok(Buffer(0))
    }

    fn scratch(&self, _: &Graph, _: usize, _: usize) -> u64 {
        0
    }

    fn compile(&mut self, _: &Graph, _: &Bindings<'_>) -> Result<Program, BackendError> {
        Ok(Program(0))
    }

    fn submit(&mut self, _: Program, _: Step) -> Result<Ticket, BackendError> {
        Err(BackendError::Unsupported("steps".into()))
    }

    fn collect(&mut self, _: Ticket) -> Result<StepOutput, BackendError> {
        Err(BackendError::Unsupported("steps".into()))
    }
}

const WIDTH: u64 = 512;
const FFN: u64 = 1024;
const LAYERS: u64 = 12;
const VOCAB: u64 = 128;

/// The linears of a layer: name, rows, columns.
const LINEARS: [(&str, u64, u64); 7] = [
    ("self_attn.q_proj", WIDTH, WIDTH),
    ("self_attn.k_proj", WIDTH, WIDTH),
    ("self_attn.v_proj", WIDTH, WIDTH),
    ("self_attn.o_proj", WIDTH, WIDTH),
    ("mlp.gate_proj", FFN, WIDTH),
    ("mlp.up_proj", FFN, WIDTH),
    ("mlp.down_proj", WIDTH, FFN),
];

/// Tensors of a linear: ending, dtype, bytes of the dtype, shape.
type Parts = Vec<(&'static str, &'static str, u64, Vec<u64>)>;

fn gptq(rows: u64, cols: u64) -> Parts {
    vec![
        (".qweight", "I32", 4, vec![cols / 8, rows]),
        (".qzeros", "I32", 4, vec![cols / 128, rows / 8]),
        (".scales", "F16", 2, vec![cols / 128, rows]),
    ]
}

fn fp8(rows: u64, cols: u64) -> Parts {
    vec![
        (".weight", "F8_E4M3", 1, vec![rows, cols]),
        (".weight_scale_inv", "F32", 4, vec![rows.div_ceil(128), cols.div_ceil(128)]),
    ]
}

fn halves(rows: u64, cols: u64) -> Parts {
    vec![(".weight", "F16", 2, vec![rows, cols])]
}

/// A Llama whose weights are zeros.
fn write(folder: &Path, quantization: Option<Value>, parts: fn(u64, u64) -> Parts) {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": WIDTH,
        "intermediate_size": FFN, "max_position_embeddings": 64, "model_type": "llama",
        "num_attention_heads": 8, "num_hidden_layers": LAYERS, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true, "vocab_size": VOCAB,
    });
    if let Some(quantization) = quantization {
        config["quantization_config"] = quantization;
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), recorded::tokenizer().to_string()).unwrap();
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    let mut add = |name: String, dtype: &str, bytes: u64, shape: Vec<u64>| {
        let start = end;
        end += shape.iter().product::<u64>() * bytes;
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
    };
    add("model.embed_tokens.weight".into(), "F16", 2, vec![VOCAB, WIDTH]);
    add("model.norm.weight".into(), "F16", 2, vec![WIDTH]);
    for layer in 0..LAYERS {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("model.layers.{layer}.{norm}.weight"), "F16", 2, vec![WIDTH]);
        }
        for (linear, rows, cols) in LINEARS {
            for (part, dtype, bytes, shape) in parts(rows, cols) {
                add(format!("model.layers.{layer}.{linear}{part}"), dtype, bytes, shape);
            }
        }
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let path = folder.join("model.safetensors");
    std::fs::write(&path, &file).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap(); // zeros that take no space
}

/// One test: memory is counted in the whole process.
#[test]
fn a_folder_is_loaded_with_the_memory_of_a_few_tensors() {
    let gptq_config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false });
    let fp8_config = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    let kinds: [(_, _, fn(u64, u64) -> Parts); 3] =
        [("gptq", Some(gptq_config), gptq), ("fp8", Some(fp8_config), fp8), ("f16", None, halves)];
    for (kind, quantization, parts) in kinds {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), quantization, parts);
        let (to_open, (model, tensors)) =
            peak(|| Model::open(&Checkpoint::open(folder.path()).unwrap(), None).unwrap());
        let made: Vec<usize> = tensors.iter().filter(|t| !t.is_ready()).map(|t| t.bytes()).collect();
        let (all, largest) = (made.iter().sum::<usize>(), *made.iter().max().unwrap());
        assert!(to_open < 4 << 20, "{kind}: {to_open} bytes to open it, {all} bytes are made of its file");
        let capacity =
            Capacity { pages: 1, page_len: 16, max_tokens: 1, max_outputs: 1, window: None, state: None };
        let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 };
        let load = || GraphRunner::new(Box::new(Device), &model.graph, tensors, config, |_| ()).map(drop);
        let (to_load, loaded) = peak(load);
        loaded.unwrap();
        // two per thread that wait or are being made, of which a rearranged one is made of another
        let few = 6 * largest + (1 << 20);
        assert!(2 * few < all, "{kind}: the model is too small to tell");
        assert!(to_load < few, "{kind}: {to_load} bytes to load it, want fewer than {few} of {all}");
    }
}
