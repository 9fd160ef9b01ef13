//! The safetensors files of a folder: one file, or the shards that an index names.

use std::collections::BTreeSet;
use std::path::Path;

use indexmap::IndexMap;
use serde_json::Value;

use super::config::Config;
use crate::limits::{self, MAX_TENSORS};
use crate::safetensors::{self, Entry};
use crate::{Access, FileKind, FolderError, FormatError, SourceFile, shown};

/// The index of a model in several files.
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a folder and the files they are in.
pub(crate) struct Shards {
    pub(crate) entries: IndexMap<String, Entry>,
    pub(crate) files: Vec<SourceFile>,
}

impl Shards {
    pub(crate) fn open(folder: &Path, access: Access) -> Result<Shards, FormatError> {
        let names = match Config::read(folder, INDEX)? {
            Some(index) => indexed(&index)?,
            None => beside(folder)?.into_iter().map(|file| (file, None)).collect(),
        };
        let mut shards = Shards { entries: IndexMap::new(), files: vec![] };
        for (file, wanted) in names {
            let path = folder.join(&file);
            if !path.is_file() {
                return Err(FolderError::MissingShard(file).into());
            }
            let bytes = access.bytes(&path)?;
            let size = bytes.len() as u64;
            shards.files.push(SourceFile {
                path: Some(path.clone()),
                bytes: size,
                kind: FileKind::Safetensors,
            });
            let entries = safetensors::read(&bytes).map_err(|e| e.at(&path))?;
            let have: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            if let Some(missing) = wanted.iter().flatten().find(|name| !have.contains(name.as_str())) {
                let text = format!("tensor `{}` is missing: {INDEX} has it in this file", shown(missing));
                return Err(FormatError::Safetensors(text).at(&path));
            }
            for entry in entries {
                let name = entry.name.clone();
                if shards.entries.insert(name.clone(), entry).is_some() {
                    return Err(FormatError::Tensor(name, crate::TensorError::Duplicate).at(&path));
                }
            }
            limits::check("the files of the folder", shards.entries.len() as u64, MAX_TENSORS)?;
        }
        Ok(shards)
    }
}

/// The files that an index names, in order, with the tensors that each must have.
fn indexed(index: &Config) -> Result<IndexMap<String, Option<Vec<String>>>, FormatError> {
    let map =
        index.get("weight_map").and_then(Value::as_object).ok_or_else(|| index.missing("weight_map"))?;
    limits::check(INDEX, map.len() as u64, MAX_TENSORS)?;
    let mut files: IndexMap<String, Option<Vec<String>>> = IndexMap::new();
    for (tensor, file) in map {
        let file = file.as_str().filter(|file| !file.contains(['/', '\\']));
        let file = file.ok_or_else(|| FolderError::ShardElsewhere(tensor.clone()))?;
        files.entry(file.into()).or_default().get_or_insert_default().push(tensor.clone());
    }
    files.sort_keys();
    Ok(files)
}

/// The files of a folder without an index: `model*.safetensors`, or all if none has that name.
fn beside(folder: &Path) -> Result<Vec<String>, FormatError> {
    let io = |e| FormatError::Io(folder.into(), e);
    let mut names = vec![];
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    names.sort();
    if names.iter().any(|name| name.starts_with("model")) {
        names.retain(|name| name.starts_with("model"));
    }
    let parts_of = |name: &String| -> Option<usize> {
        name.strip_suffix(".safetensors")?.split_once("-of-")?.1.parse().ok()
    };
    match names.iter().find_map(parts_of) {
        Some(count) if names.len() != count => Err(FolderError::FewShards(names.len(), count).into()),
        _ => Ok(names),
    }
}
