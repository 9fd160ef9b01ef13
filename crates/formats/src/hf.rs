//! A Hugging Face folder as a checkpoint: `config.json` becomes the keys, and safetensors become the tensors, of a GGUF file of the
//! same model.
//!
//! There is one table per architecture (`families`), so that nothing else of a model is written twice. Rearranged tensors are
//! computed when they are read, others are slices of the files.

mod config;
mod families;
mod family;
mod import;
mod matrix;
mod peft;
mod quantized;
mod rope;
mod shards;
mod tokenizer;

use std::path::Path;

use indexmap::IndexMap;
use tern_quant::Dialect;

use self::config::Config;
use self::import::Import;
pub(crate) use self::peft::open as open_adapter;
use self::shards::Shards;
use crate::{Access, Checkpoint, FormatError, Metadata, Value, shown};

/// The `tokenizer.*` keys of a folder with a `tokenizer.json`, with nothing else of the model.
pub fn folder_tokenizer(folder: &Path) -> Result<Metadata, FormatError> {
    let config = Config::read(folder, "config.json")?.unwrap_or_default();
    let mut import = Import::new(config, "", IndexMap::new())?;
    tokenizer::import(folder, &mut import, 0).map_err(|e| e.at(folder))?;
    import.metadata.remove("general.architecture");
    Ok(import.metadata)
}

pub(crate) fn open(folder: &Path, access: Access) -> Result<Checkpoint, FormatError> {
    let config = Config::read(folder, "config.json")?;
    let config = config.ok_or_else(|| FormatError::Config("the folder has no config.json".into()))?;
    let names = config.optional_strings("architectures")?.unwrap_or_default();
    let name = *names.first().ok_or_else(|| config.missing("architectures"))?;
    let family = families::find(name).ok_or_else(|| {
        FormatError::Config(format!("config.json: architecture {} is not supported", shown(name)))
    })?;
    let Shards { entries, files } = Shards::open(folder, access)?;
    let weights = quantized::weights(entries, &config)?;
    let mut import = Import::new(config, family.arch, weights)?;
    if let Some(name) = folder.file_name() {
        import.metadata.insert("general.name", Value::String(name.to_string_lossy().into_owned()));
    }
    (family.prepare)(&mut import)?;
    import.set_keys(family)?;
    import.set_rope()?;
    import.rename(family)?;
    let rows = import.tensors.get("token_embd.weight").map_or(0, |t| t.rows());
    tokenizer::import(folder, &mut import, rows)?;
    let Import { metadata, tensors, .. } = import;
    Ok(Checkpoint { metadata, tensors, dialect: Dialect::Ggml, files })
}
