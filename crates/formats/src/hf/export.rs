//! A checkpoint as a Hugging Face folder: the way back of `hf::open`, by the same tables.
//!
//! The folder is written beside its final name, opened as any other and compared with the model, and renamed
//! only then: what cannot be expressed in a folder differs there, and is refused by its name.

mod check;
mod config;
mod shards;
mod tensors;
mod tokenizer;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::Value as Json;
use tern_quant::Quant;

use super::families;
use super::family::Family;
use crate::staging::{Staging, sync_folder};
use crate::{Checkpoint, ExportError, FormatError};

/// How a model is written as a folder.
#[derive(Clone, Copy, Debug)]
pub struct FolderExport<'a> {
    /// The model.
    pub model: &'a Checkpoint,
    /// The format of matrices: F32, F16 or BF16. By default floats are kept, and decoded weights are F32.
    pub floats: Option<&'static Quant>,
    /// Largest number of bytes of a file; a tensor is always in one.
    pub max_file: u64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFolder {
    /// The name in `architectures`.
    pub architecture: &'static str,
    /// Bytes of all safetensors files.
    pub bytes: u64,
    /// Those files.
    pub files: usize,
    /// Tensors in them.
    pub tensors: usize,
}

/// A family whose folders are written.
struct Written {
    family: &'static Family,
    /// `model_type` of `config.json`.
    model_type: &'static str,
    /// A key that its models have, if another family has the same name in GGUF files.
    with_key: Option<&'static str>,
}

const fn written(family: &'static Family, model_type: &'static str) -> Written {
    Written { family, model_type, with_key: None }
}

/// Families whose tensors are those of GGUF files under other names, in another order of rows or without a
/// one; the first that suits a model counts.
static WRITTEN: &[Written] = &[
    Written { with_key: Some("expert_count"), ..written(&families::MIXTRAL, "mixtral") },
    written(&families::LLAMA, "llama"),
    written(&families::QWEN2, "qwen2"),
    written(&families::QWEN3, "qwen3"),
    written(&families::QWEN3MOE, "qwen3_moe"),
    written(&families::GEMMA2, "gemma2"),
    written(&families::GEMMA3, "gemma3_text"),
    written(&families::PHI3, "phi3"),
    Written { with_key: Some("attention.sliding_window"), ..written(&families::OLMO3, "olmo3") },
    written(&families::OLMO2, "olmo2"),
    written(&families::GLM4, "glm4"),
    written(&families::SEED_OSS, "seed_oss"),
    written(&families::HUNYUAN, "hunyuan_v1_dense"),
    written(&families::ERNIE, "ernie4_5"),
    written(&families::SMOLLM3, "smollm3"),
    written(&families::GRANITE, "granite"),
];

impl FolderExport<'_> {
    /// Writes the folder, checks it and returns what it has. `progress` gets the bytes of
    /// the model that are done.
    ///
    /// ```no_run
    /// use tern_formats::{Checkpoint, FolderExport};
    ///
    /// let model = Checkpoint::open("model.gguf".as_ref())?;
    /// FolderExport { model: &model, floats: None, max_file: 5_000_000_000 }.write("folder".as_ref(), &mut |_| ())?;
    /// # Ok::<(), tern_formats::FormatError>(())
    /// ```
    pub fn write(&self, out: &Path, progress: &mut dyn FnMut(u64)) -> Result<ExportedFolder, FormatError> {
        let exists = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
        if exists || out.is_file() {
            return Err(ExportError::Exists(out.into()).into());
        }
        let io = |e| FormatError::Io(out.into(), e);
        let staging = Staging::beside(out).map_err(io)?;
        let folder = staging.path().join(out.file_name().unwrap_or_default());
        fs::create_dir(&folder).map_err(io)?;
        let written = self.write_files(&folder, progress)?;
        check::compare(self, &folder)?;
        sync_folder(&folder).map_err(io)?;
        staging.publish(&folder, out).map_err(io)?;
        Ok(written)
    }

    fn write_files(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ExportedFolder, FormatError> {
        let arch = self.model.metadata.optional_str("general.architecture").ok().flatten().unwrap_or("");
        let has = |key: &str| self.model.metadata.get(&format!("{arch}.{key}")).is_some();
        let suits = |one: &&Written| one.family.arch == arch && one.with_key.is_none_or(has);
        let Some(Written { family, model_type, .. }) = WRITTEN.iter().find(suits) else {
            let mut known: Vec<&'static str> = WRITTEN.iter().map(|one| one.family.arch).collect();
            known.dedup();
            return Err(ExportError::Architecture(arch.into(), known).into());
        };
        let config = config::config(self, family, model_type)?;
        let tensors = tensors::tensors(self, family, &config)?;
        write_json(folder, "config.json", &Json::Object(config))?;
        tokenizer::write(&self.model.metadata, folder)?;
        let (files, bytes) = shards::write(folder, &tensors, self.max_file, progress)?;
        Ok(ExportedFolder { architecture: family.names[0], bytes, files, tensors: tensors.len() })
    }
}

fn write_json(folder: &Path, name: &str, value: &Json) -> Result<(), FormatError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| FormatError::Write(e.into()))?;
    write_text(folder, name, &(text + "\n"))
}

fn write_text(folder: &Path, name: &str, text: &str) -> Result<(), FormatError> {
    let path = folder.join(name);
    let mut file = File::create_new(&path).map_err(|e| FormatError::Io(path.clone(), e))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| FormatError::Io(path, e))
}
