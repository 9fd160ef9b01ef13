//! `tern inspect`: the contents of a model file and the memory it needs.

use std::io::Write;

use serde_json::json;
use tern::cpu::Cpu;
use tern::engine::StateCapacity;
use tern::formats::{Access, Checkpoint, FileKind, Value, escaped, shown};
use tern::graph::{Backend, KvCells};
use tern::models::{Model, Tower};
use tern::{OpenedTower, inspect_checkpoint, units};

use crate::args::InspectArgs;
use crate::error::{CliError, CliResult};
use crate::load::Bars;

/// Tensors of one format.
pub(super) struct FormatUse {
    pub(super) name: &'static str,
    bits: f64,
    tensors: usize,
    pub(super) weights: u64,
    pub(super) bytes: u64,
}

pub(crate) fn inspect(args: &InspectArgs) -> CliResult<()> {
    let checkpoint = inspect_checkpoint(&args.file, &Bars::default())?;
    // a file that cannot be run can still be inspected
    let model = Model::open(&checkpoint, None).map(|m| m.0).map_err(|e| CliError::from(e).to_string());
    let formats = formats(&checkpoint);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", to_json(&checkpoint, &model, &formats))?;
        return Ok(());
    }
    for file in &checkpoint.files {
        let path =
            file.path.as_ref().map_or_else(|| "(embedded in the binary)".into(), |p| p.display().to_string());
        let (path, bytes) = (escaped(&path), units::bytes(file.bytes));
        match file.kind {
            FileKind::Gguf { version, alignment } => {
                writeln!(out, "{path}: GGUF v{version}, {bytes}, alignment {alignment}")?;
            }
            FileKind::Safetensors => writeln!(out, "{path}: safetensors, {bytes}")?,
        }
    }
    writeln!(out, "\nmetadata (dialect {:?})", checkpoint.dialect)?;
    for (key, value) in checkpoint.metadata.iter() {
        writeln!(out, "  {} = {}", shown(key), value.summary())?;
    }
    writeln!(out, "\ntensors ({})", checkpoint.tensors.len())?;
    for t in checkpoint.tensors.values() {
        writeln!(out, "  {:40} {:8} {:?}", shown(&t.name), t.quant.name, t.dims)?;
    }
    writeln!(out, "\nformats")?;
    for f in &formats {
        let weights = units::thousands(f.weights);
        let size = units::bytes(f.bytes);
        writeln!(
            out,
            "  {:8} {:>5} tensors {weights:>16} weights {size:>10} at {:.4} bits",
            f.name, f.tensors, f.bits
        )?;
    }
    match &model {
        Ok(model) => {
            let need = MemoryNeed::new(&checkpoint, model)?;
            writeln!(out, "\nmemory")?;
            writeln!(out, "  weights               {}", units::bytes(need.weights))?;
            writeln!(out, "  KV per 1,000 tokens   {}", units::bytes(need.kv_per_1000_tokens))?;
            if need.state_per_sequence > 0 {
                writeln!(out, "  state per sequence    {}", units::bytes(need.state_per_sequence))?;
            }
            writeln!(
                out,
                "  scratch               {} for steps of {} tokens",
                units::bytes(need.scratch),
                need.step_tokens
            )?;
        }
        Err(_) if Tower::is_tower(&checkpoint) => {}
        Err(why) => writeln!(out, "\ncannot be run: {}", escaped(why))?,
    }
    if let Some(images) = images(&checkpoint, model.is_ok()) {
        writeln!(out, "\nimages\n  {}", escaped(&images))?;
    }
    Ok(())
}

/// The tower that a file is, or the one that a model would be loaded with.
fn images(checkpoint: &Checkpoint, is_model: bool) -> Option<String> {
    if Tower::is_tower(checkpoint) {
        return Some(match Tower::kind_of(checkpoint) {
            Ok(kind) => format!(
                "tower {}, for models of {}: use it with --mmproj, or put it beside the model",
                kind.name,
                kind.archs.join(", ")
            ),
            Err(why) => format!("cannot be used: {}", CliError::from(why)),
        });
    }
    match OpenedTower::beside(checkpoint, Access::default()) {
        Ok(Some(tower)) if is_model => {
            let bytes = units::bytes(tower.weight_bytes());
            Some(format!("tower {}, {bytes} in the memory of the CPU", tower.tower.kind.name))
        }
        Err(why) if is_model => Some(format!("the model would be loaded without images: {why}")),
        _ => None,
    }
}

/// The memory that a model needs, in bytes.
struct MemoryNeed {
    weights: u64,
    kv_per_1000_tokens: u64,
    /// Two state slots, with recurrent layers.
    state_per_sequence: u64,
    /// For steps of `step_tokens`.
    scratch: u64,
    step_tokens: usize,
}

impl MemoryNeed {
    fn new(checkpoint: &Checkpoint, model: &Model) -> CliResult<MemoryNeed> {
        let kv: usize = model.graph.kv.iter().map(|layer| layer.bytes_per_token(KvCells::F16)).sum();
        let cpu = Cpu::new(1)?;
        let step_tokens = cpu.info().step_tokens;
        Ok(MemoryNeed {
            weights: checkpoint.total_bytes(),
            kv_per_1000_tokens: 1000 * kv as u64,
            state_per_sequence: StateCapacity::PER_SEQUENCE as u64 * model.graph.state_bytes(),
            scratch: cpu.scratch(&model.graph, step_tokens, 1),
            step_tokens,
        })
    }
}

/// The formats of all tensors, the one with the most bytes first.
pub(super) fn formats(checkpoint: &Checkpoint) -> Vec<FormatUse> {
    let mut found: Vec<FormatUse> = vec![];
    for t in checkpoint.tensors.values() {
        let (weights, bytes) = (t.dims.iter().product::<u64>(), t.bytes());
        match found.iter_mut().find(|f| f.name == t.quant.name) {
            Some(f) => {
                f.tensors += 1;
                f.weights += weights;
                f.bytes += bytes;
            }
            None => {
                let bits = t.quant.bits_per_weight();
                found.push(FormatUse { name: t.quant.name, bits, tensors: 1, weights, bytes });
            }
        }
    }
    found.sort_by_key(|f| std::cmp::Reverse(f.bytes));
    found
}

fn to_json(
    checkpoint: &Checkpoint,
    model: &Result<Model, String>,
    formats: &[FormatUse],
) -> serde_json::Value {
    let metadata: serde_json::Map<String, serde_json::Value> =
        checkpoint.metadata.iter().map(|(k, v)| (k.to_string(), value_json(v))).collect();
    let tensors = checkpoint
        .tensors
        .values()
        .map(|t| json!({ "name": t.name, "format": t.quant.name, "dims": t.dims, "bytes": t.bytes() }));
    let formats = formats.iter().map(|f| {
        json!({ "format": f.name, "tensors": f.tensors, "weights": f.weights, "bytes": f.bytes, "bits_per_weight": f.bits })
    });
    let files = checkpoint.files.iter().map(|f| match f.kind {
        FileKind::Gguf { version, alignment } => {
            json!({ "path": f.path, "bytes": f.bytes, "version": version, "alignment": alignment })
        }
        FileKind::Safetensors => json!({ "path": f.path, "bytes": f.bytes }),
    });
    let memory = model.as_ref().ok().and_then(|model| {
        let need = MemoryNeed::new(checkpoint, model).ok()?;
        Some(json!({
            "weights": need.weights,
            "kv_per_1000_tokens": need.kv_per_1000_tokens,
            "state_per_sequence": need.state_per_sequence,
            "scratch": need.scratch,
        }))
    });
    json!({
        "files": files.collect::<Vec<_>>(),
        "dialect": format!("{:?}", checkpoint.dialect),
        "metadata": metadata,
        "tensors": tensors.collect::<Vec<_>>(),
        "formats": formats.collect::<Vec<_>>(),
        "runnable": model.is_ok(),
        "why_not": model.as_ref().err(),
        "images": images(checkpoint, model.is_ok()),
        "memory": memory,
    })
}

fn value_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Uint(x) => json!(x),
        Value::Int(x) => json!(x),
        Value::Float(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::String(x) => json!(x),
        Value::Strings(x) => json!(x),
        Value::Uints(x) => json!(x),
        Value::Ints(x) => json!(x),
        Value::Floats(x) => json!(x),
        Value::Bools(x) => json!(x),
    }
}
