//! A folder as a model: the one GGUF file or the one split set in it, or else its safetensors.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{FormatError, split::ShardName};

/// What to open for a folder.
pub(crate) enum Found {
    /// A GGUF file.
    Gguf(PathBuf),
    /// The folder itself.
    Safetensors,
}

/// What to open for a folder.
pub(crate) fn model_in(folder: &Path) -> Result<Found, FormatError> {
    let io = |e| FormatError::Io(folder.into(), e);
    let mut candidates = Vec::new();
    let mut safetensors = false;
    for entry in fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        safetensors |= name.ends_with(".safetensors");
        // the tower of a model's images is no model
        if name.ends_with(".gguf") && !name.to_lowercase().contains("mmproj") {
            // all shards of a model count as its first
            candidates.push(ShardName::parse(&name).map_or(name, |shard| shard.sibling(1)));
        }
    }
    candidates.sort();
    candidates.dedup();
    let refused = match candidates.as_slice() {
        [one] => return Ok(Found::Gguf(folder.join(one))),
        [] if safetensors => return Ok(Found::Safetensors),
        [] => FormatError::EmptyFolder,
        _ => FormatError::ManyModels(candidates),
    };
    Err(refused.at(folder))
}
