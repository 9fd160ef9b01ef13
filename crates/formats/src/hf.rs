//! A Hugging Face folder as a checkpoint: `config.json` becomes the keys, and safetensors become the tensors,
//! of a GGUF file of the same model.
//!
//! There is one table per architecture (`families`), so that nothing else of a model is written twice.
//! Rearranged tensors are computed when they are read, others are slices of the files.

mod config;
mod export;
mod families;
mod family;
mod import;
mod matrix;
mod peft;
mod quantized;
mod remaining;
mod renaming;
mod rope;
mod sentence;
mod shards;
mod tokenizer;
mod towers;

use std::collections::HashSet;
use std::path::Path;

use indexmap::IndexMap;
use tern_quant::Dialect;

use self::config::Config;
pub use self::export::{ExportedFolder, FolderExport};
use self::import::Import;
use self::matrix::Matrix;
pub(crate) use self::peft::open as open_adapter;
use self::shards::Shards;
pub(crate) use self::towers::open as open_tower;
use crate::{Access, Checkpoint, FolderError, FormatError, Metadata, Value, safetensors};

/// The key of the number of quantised matrices that no block format has exactly: they are F16, rounded.
pub const ROUNDED: &str = "tern.rounded_matrices";

/// The key of the names in `config.json` that nothing has read, though they may change what the model
/// computes.
pub const UNREAD: &str = "tern.unread_config_keys";

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
    let config = config.ok_or_else(|| FolderError::MissingFile("config.json".into()))?;
    let names = config.optional_strings("architectures")?.unwrap_or_default();
    let name = *names.first().ok_or_else(|| config.missing("architectures"))?;
    let name = families::language_model(name, &config)?;
    let family = families::find(name).ok_or_else(|| FolderError::Architecture(name.into()))?;
    let Shards { mut entries, files } = Shards::open(folder, access)?;
    entries.retain(|name, _| !import::is_unused(name));
    let is_float = |entry: &safetensors::Entry| matrix::float_format(entry.dtype).is_some();
    let plain: HashSet<String> =
        entries.iter().filter(|(_, e)| is_float(e)).map(|(n, _)| n.clone()).collect();
    let weights = quantized::weights(entries, &config)?;
    let is_rounded =
        |(name, matrix): &(&String, &Matrix)| matrix.quant == &tern_quant::F16 && !plain.contains(*name);
    let rounded = weights.iter().filter(is_rounded).count();
    let mut import = Import::new(config, family.arch, weights)?;
    if rounded > 0 {
        import.metadata.insert(ROUNDED, Value::Uint(rounded as u64));
    }
    if let Some(name) = name_of(folder) {
        import.metadata.insert("general.name", Value::String(name));
    }
    (family.prepare)(&mut import)?;
    if import.config.optional_bool("is_causal")? == Some(false) {
        import.set("attention.causal", Value::Bool(false)); // graphs without it refuse the key
    }
    import.set_keys(family)?;
    import.set_rope()?;
    import.rename(family)?;
    sentence::import(folder, access, &mut import)?;
    let rows = import.tensors.get("token_embd.weight").map_or(0, |t| t.rows());
    tokenizer::import(folder, &mut import, rows)?;
    let unread = import.config.unread();
    if !unread.is_empty() {
        import.metadata.insert(UNREAD, Value::Strings(unread));
    }
    let Import { metadata, tensors, .. } = import;
    Ok(Checkpoint { metadata, tensors, dialect: Dialect::Ggml, files })
}

/// The name of a folder, or of the repository whose snapshot it is: `models--org--repo/snapshots/COMMIT`.
fn name_of(folder: &Path) -> Option<String> {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let repository = snapshots.and_then(Path::parent).and_then(name);
    let of_repository = repository.as_deref().and_then(|r| r.strip_prefix("models--")?.split_once("--"));
    of_repository.map(|(_, repo)| repo.to_string()).or_else(|| name(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_the_name_of_its_repository() {
        let name = |path: &str| name_of(Path::new(path));
        assert_eq!(name("hub/models--org--some-model/snapshots/0123").as_deref(), Some("some-model"));
        assert_eq!(name("a/snapshots/x").as_deref(), Some("x"));
        assert_eq!(name("folder").as_deref(), Some("folder"));
        assert_eq!(name("/"), None);
    }
}
