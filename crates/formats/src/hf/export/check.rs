//! The check of a folder: opened as any other, it is the model that it was written from.

use std::path::Path;

use super::super::tokenizer::{NORMAL, UNUSED};
use super::FolderExport;
use super::tensors::{IN_CONFIG, target};
use crate::{Checkpoint, ExportError, FormatError, Metadata, Tensor, TensorExport, Value};

/// Keys of GGUF files that say nothing a folder needs: what a model is called, and what
/// its reader derives itself.
const DERIVED: [&str; 6] = [
    "vocab_size",
    "rope.scaling.finetuned",
    "expert_gating_func",
    "attention.causal",
    "use_parallel_residual",
    "tensor_data_layout",
];
/// The keys of tokenizers that decide about tokens.
const TOKENIZER: [&str; 10] = [
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.chat_template",
];

/// Refuses a folder that is another model.
pub(super) fn compare(export: &FolderExport<'_>, folder: &Path) -> Result<(), FormatError> {
    let (model, found) = (export.model, Checkpoint::open(folder)?);
    keys(&model.metadata, &found.metadata)?;
    token_kinds(&model.metadata, &found.metadata)?;
    for tensor in model.tensors.values() {
        let Some(other) = found.tensors.get(&tensor.name) else {
            return Err(ExportError::Tensor(tensor.name.clone(), TensorExport::Lost).into());
        };
        compare_tensor(export, tensor, other)?;
    }
    match found.tensors.keys().find(|name| !model.tensors.contains_key(*name)) {
        Some(name) => Err(ExportError::Tensor(name.clone(), TensorExport::New).into()),
        None => Ok(()),
    }
}

fn keys(model: &Metadata, found: &Metadata) -> Result<(), FormatError> {
    let arch = model.optional_str("general.architecture").ok().flatten().unwrap_or("");
    let own = |key: &str| {
        key.strip_prefix(arch)
            .and_then(|rest| rest.strip_prefix('.'))
            .is_some_and(|name| !DERIVED.contains(&name))
    };
    for (key, value) in model.iter().filter(|(key, _)| own(key) || TOKENIZER.contains(key)) {
        let other = found.get(key);
        if !other.is_some_and(|other| same(value, other)) && !is_default(key, value, other) {
            let found = other.map_or("missing".into(), Value::summary);
            let (key, value) = (key.to_string(), value.summary());
            return Err(ExportError::Key { key, value, found }.into());
        }
    }
    Ok(())
}

/// Tokens that are found before text is split must be the same; those that no text has need not.
fn token_kinds(model: &Metadata, found: &Metadata) -> Result<(), FormatError> {
    let kinds = |metadata: &Metadata| -> Vec<i64> {
        let kind = |kind: i64| if kind == UNUSED { NORMAL } else { kind };
        match metadata.get("tokenizer.ggml.token_type") {
            Some(Value::Ints(kinds)) => kinds.iter().map(|n| kind(*n)).collect(),
            Some(Value::Uints(kinds)) => kinds.iter().map(|n| kind(*n as i64)).collect(),
            _ => vec![],
        }
    };
    let (want, got) = (kinds(model), kinds(found));
    match want.iter().zip(&got).position(|(want, got)| want != got) {
        Some(id) => Err(ExportError::TokenKind { id, kind: want[id], found: got[id] }.into()),
        None => Ok(()),
    }
}

/// Equal values; numbers of files are f32 at most.
fn same(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Uint(n) => Some(*n as f32),
        Value::Int(n) => Some(*n as f32),
        Value::Float(x) => Some(*x as f32),
        _ => None,
    };
    match number(a).zip(number(b)) {
        Some((a, b)) => (a - b).abs() <= 1e-6 * a.abs(),
        None => a == b,
    }
}

/// Missing keys whose value is the one that readers assume.
fn is_default(key: &str, value: &Value, other: Option<&Value>) -> bool {
    match (other, value) {
        (None, Value::Bool(false)) => true,
        (None, Value::Float(x)) => {
            key.ends_with("_factor") && *x == 1.0 || key.ends_with("_softcapping") && *x == 0.0
        }
        (None, Value::String(text)) => key.ends_with("rope.scaling.type") && text == "none",
        _ => false,
    }
}

fn compare_tensor(export: &FolderExport<'_>, tensor: &Tensor, other: &Tensor) -> Result<(), FormatError> {
    let refused = |why: TensorExport| FormatError::from(ExportError::Tensor(tensor.name.clone(), why));
    let flat = |dims: &[u64]| dims.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    if flat(&tensor.dims) != flat(&other.dims) {
        return Err(refused(TensorExport::Shape(tensor.dims.clone(), other.dims.clone())));
    }
    let (data, again, to) = (tensor.data(), other.data(), target(tensor, export.floats));
    let in_config = IN_CONFIG.contains(&tensor.name.as_str());
    let (rows, tail) = data.split_at(data.len() - tensor.quant.tail);
    let (cols, columns) = (tensor.cols(), other.cols());
    let row_bytes = cols / tensor.quant.block_len * tensor.quant.block_bytes();
    let other_bytes = columns / other.quant.block_len * other.quant.block_bytes();
    if cols != columns {
        return Err(refused(TensorExport::Columns(cols, columns)));
    }
    let (mut want, mut got, mut rounded) = (vec![0.0; cols], vec![0.0; cols], vec![]);
    for (row, (a, b)) in rows.chunks_exact(row_bytes).zip(again.chunks_exact(other_bytes)).enumerate() {
        tensor.quant.decode(a, tail, &mut want);
        other.quant.decode(b, &[], &mut got);
        if to != tensor.quant {
            rounded.clear();
            to.encode(&want, &mut rounded).map_err(|e| refused(TensorExport::Encode(e)))?;
            to.decode(&rounded, &[], &mut want);
        }
        let near = |a: f32, b: f32| a == b || in_config && (a / b - 1.0).abs() < 1e-5;
        if let Some(col) = want.iter().zip(&got).position(|(a, b)| !near(*a, *b)) {
            let (a, b) = (want[col], got[col]);
            let (weight, found) = (a.to_string(), b.to_string());
            return Err(refused(TensorExport::Weight { row, col, weight, found }));
        }
    }
    Ok(())
}
