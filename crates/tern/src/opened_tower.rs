//! The tower of a model's images between its file and a device: found beside the model, or named.

use std::path::{Path, PathBuf};

use tern_cpu::Cpu;
use tern_engine::TowerRunner;
use tern_formats::{Access, Checkpoint, FileKind, FormatError};
use tern_models::{ModelError, Tower};
use tern_text::Tokenizer;

use crate::progress::Progress;
use crate::{Error, ImageEncoder, ImageOptions, LoadOptions, machine};

/// Where the tower of a model is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TowerFile {
    /// The file beside the model's whose name contains `mmproj`, or the model's own folder; none on GPUs.
    #[default]
    Auto,
    /// Nowhere: the model takes no images.
    None,
    /// A GGUF file.
    File(PathBuf),
}

/// A tower that fits its model, with its weights mapped. Clones share them.
#[derive(Clone, Debug)]
pub struct OpenedTower {
    /// Its graphs.
    pub tower: Tower,
    /// Its file, or the part of a folder that is one.
    pub checkpoint: Checkpoint,
}

impl OpenedTower {
    /// Finds and opens the tower of a model.
    pub(crate) fn open(
        model: &Checkpoint,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Option<OpenedTower>, Error> {
        match &options.tower {
            TowerFile::None => Ok(None),
            TowerFile::File(path) => {
                let checkpoint = Checkpoint::open_as(path, options.access)?;
                if !Tower::is_tower(&checkpoint) {
                    return Err(Error::NoTower(path.display().to_string()));
                }
                Ok(Some(OpenedTower::fitting(checkpoint, model)?))
            }
            TowerFile::Auto => match OpenedTower::beside(model, options.access) {
                Ok(tower) => Ok(tower),
                Err(why) => {
                    progress.warn(&format!("the model is loaded without images: {why}"));
                    Ok(None)
                }
            },
        }
    }

    fn fitting(checkpoint: Checkpoint, model: &Checkpoint) -> Result<OpenedTower, Error> {
        let arch = tern_models::Arch::of(&model.metadata)?;
        let width = model.tensors.get("token_embd.weight").map_or(0, |table| table.cols());
        let width = Tower::row_width(&model.metadata, width)?;
        Ok(OpenedTower { tower: Tower::open(&checkpoint, arch.name, width)?, checkpoint })
    }

    /// The tower in the folder of a model that fits it.
    pub fn beside(model: &Checkpoint, access: Access) -> Result<Option<OpenedTower>, Error> {
        let first = model.files.first();
        let Some((file, path)) = first.and_then(|file| Some((file, file.path.as_deref()?))) else {
            return Ok(None);
        };
        let folder = folder_of(path);
        if file.kind == FileKind::Safetensors {
            let checkpoint = Checkpoint::open_tower(folder, access)?;
            return checkpoint.map(|checkpoint| OpenedTower::fitting(checkpoint, model)).transpose();
        }
        let mut refused = None;
        for path in towers_in(folder, path)? {
            let checkpoint = Checkpoint::open_as(&path, access)?;
            if !Tower::is_tower(&checkpoint) {
                continue;
            }
            match OpenedTower::fitting(checkpoint, model) {
                Ok(tower) => return Ok(Some(tower)),
                // of another model in the same folder
                Err(Error::Model(ModelError::DoesNotSee { .. } | ModelError::TowerWidth { .. })) => {}
                Err(why) => refused = Some(why),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Whether the model at a path would be loaded with a tower. Files without one near them are not opened.
    pub fn is_beside(path: &Path) -> bool {
        let is_near = || towers_in(folder_of(path), path).is_ok_and(|towers| !towers.is_empty());
        let opened = || OpenedTower::beside(&Checkpoint::open(path).ok()?, Access::default()).ok()?;
        (path.is_dir() || is_near()) && opened().is_some()
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> u64 {
        self.tower.bytes(&self.checkpoint)
    }

    /// Stores it in the host's memory and prepares it for a model with this vocabulary.
    pub(crate) fn encoder(
        self,
        tokenizer: &Tokenizer,
        threads: Option<usize>,
        options: ImageOptions,
    ) -> Result<ImageEncoder, Error> {
        let OpenedTower { tower, checkpoint } = self;
        let stage = |graph: &tern_graph::Graph| -> Result<_, ModelError> {
            Ok((graph.clone(), tower.tensors(graph, &checkpoint)?))
        };
        let stages = [stage(&tower.encoder)?, stage(&tower.projector)?];
        let cpu = Cpu::new(machine::threads(threads))?;
        let runner = TowerRunner::new(Box::new(cpu), stages)?;
        ImageEncoder::new(tower, runner, tokenizer, options)
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The files of towers in a folder, by name; the one that has the name of the model's file is the first.
fn towers_in(folder: &Path, model: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let io = |e| FormatError::Io(folder.into(), e);
    let mut paths = vec![];
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if name.contains("mmproj") && name.ends_with(".gguf") && path.is_file() {
            paths.push(path);
        }
    }
    let model = model.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_own = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.strip_prefix("mmproj-") == Some(&model)
    };
    paths.sort_by_key(|path| (!is_own(path), path.clone()));
    Ok(paths)
}
