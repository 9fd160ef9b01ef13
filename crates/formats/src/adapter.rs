//! Low-rank adapters (LoRA): GGUF files, and safetensors of PEFT with their `adapter_config.json`.
//!
//! An adapter changes linears of a base model: `y += scale * B (A x)`. Both kinds of files become matrices by
//! the name of the weight in GGUF files, with the same order of rows and columns.

use std::path::Path;

use indexmap::IndexMap;

use crate::{Access, Checkpoint, FormatError, Metadata, Tensor, hf, shown};

/// An adapter of a base model.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// What it adds, by the name of the weight.
    pub linears: IndexMap<String, LowRank>,
}

/// What an adapter adds to one linear: `scale * B (A x)`.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[rank, columns of the weight]`
    pub a: Tensor,
    /// `[rows of the weight, rank]`
    pub b: Tensor,
    /// From the adapter's alpha and its rank.
    pub scale: f32,
}

impl LowRank {
    /// Refuses matrices of different ranks.
    pub(crate) fn new(name: &str, a: Tensor, b: Tensor, scale: f32) -> Result<LowRank, FormatError> {
        let matrices = a.dims.len() == 2 && b.dims.len() == 2;
        if !matrices || a.rows() != b.cols() {
            return wrong(format!(
                "{}: want A of [rank, columns] and B of [rows, rank], file has {:?} and {:?}",
                shown(name),
                a.dims.iter().rev().collect::<Vec<_>>(),
                b.dims.iter().rev().collect::<Vec<_>>()
            ));
        }
        if !scale.is_finite() {
            return wrong(format!("{}: the scale of the adapter is {scale}", shown(name)));
        }
        Ok(LowRank { a, b, scale })
    }

    /// Rows of `A` and columns of `B`.
    pub fn rank(&self) -> usize {
        self.a.rows()
    }
}

impl Adapter {
    /// Opens a GGUF file, a folder of PEFT or its `adapter_model.safetensors`, for a
    /// base model with these keys.
    pub fn open(path: &Path, access: Access, base: &Metadata) -> Result<Adapter, FormatError> {
        let folder = match path.extension() {
            _ if path.is_dir() => Some(path),
            Some(extension) if extension == "safetensors" => Some(path.parent().unwrap_or(Path::new("."))),
            _ => None,
        };
        let adapter = match folder {
            Some(folder) => hf::open_adapter(folder, access, base),
            None => Checkpoint::open_as(path, access).and_then(|file| of_gguf(file, base)),
        };
        adapter.map_err(|e| e.at(path))
    }
}

/// The adapter of a GGUF file.
fn of_gguf(file: Checkpoint, base: &Metadata) -> Result<Adapter, FormatError> {
    let text = |metadata: &Metadata, key: &str| -> Result<String, FormatError> {
        let value = metadata.optional_str(key).map_err(|e| FormatError::Adapter(e.to_string()))?;
        Ok(value.unwrap_or("missing").to_string())
    };
    for (key, want) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = text(&file.metadata, key)?;
        if found != want {
            return wrong(format!("not an adapter: `{key}` is {}, want {want}", shown(&found)));
        }
    }
    let key = "general.architecture";
    let (arch, base_arch) = (text(&file.metadata, key)?, text(base, key)?);
    if arch != base_arch {
        return wrong(format!(
            "an adapter of a `{}` model: the model is `{}`",
            shown(&arch),
            shown(&base_arch)
        ));
    }
    if let Some((key, _)) = file.metadata.iter().find(|(key, _)| key.starts_with("adapter.alora.")) {
        return wrong(format!("activated adapters are not supported: the file has `{}`", shown(key)));
    }
    let alpha = file.metadata.f32("adapter.lora.alpha").map_err(|e| FormatError::Adapter(e.to_string()))?;
    let mut linears = IndexMap::new();
    for (name, a) in &file.tensors {
        let Some(weight) = name.strip_suffix(".lora_a") else {
            let weight = name.strip_suffix(".lora_b");
            if weight.is_some_and(|weight| file.tensors.contains_key(&format!("{weight}.lora_a"))) {
                continue;
            }
            return wrong(match weight {
                Some(weight) => format!("{}: has `lora_b` and no `lora_a`", shown(weight)),
                None => format!("{}: unexpected tensor in an adapter", shown(name)),
            });
        };
        let Some(b) = file.tensors.get(&format!("{weight}.lora_b")) else {
            return wrong(format!("{}: has `lora_a` and no `lora_b`", shown(weight)));
        };
        // as llama.cpp: no alpha is a scale of 1
        let scale = if alpha == 0.0 { 1.0 } else { alpha / a.rows() as f32 };
        linears.insert(weight.to_string(), LowRank::new(weight, a.clone(), b.clone(), scale)?);
    }
    whole(linears)
}

/// Refuses an adapter that changes nothing.
pub(crate) fn whole(linears: IndexMap<String, LowRank>) -> Result<Adapter, FormatError> {
    if linears.is_empty() {
        return wrong("the adapter has no tensors".into());
    }
    Ok(Adapter { linears })
}

pub(crate) fn wrong<T>(text: String) -> Result<T, FormatError> {
    Err(FormatError::Adapter(text))
}
