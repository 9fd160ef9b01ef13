//! A model as stored in its files: metadata, and tensors that point into the mapped bytes.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use indexmap::{IndexMap, map::Entry};
use tern_quant::Dialect;

use crate::limits::{self, MAX_TENSORS};
use crate::{Access, FormatError, Metadata, Tensor, TensorError, folder, gguf, hf, shard::Shard, split};

/// One file that a checkpoint was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path; `None` for bytes in memory.
    pub path: Option<PathBuf>,
    /// Its size in bytes.
    pub bytes: u64,
    /// What kind of file it is.
    pub kind: FileKind,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// GGUF.
    Gguf {
        /// 2 or 3.
        version: u32,
        /// Every tensor starts at a multiple of this.
        alignment: u64,
    },
    /// safetensors.
    Safetensors,
}

/// A model: metadata and tensors of one file, or of all shards of a split model.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Key-value pairs of the first shard in file order, without its `split.*` keys.
    pub metadata: Metadata,
    /// Tensors in file order, by name.
    pub tensors: IndexMap<String, Tensor>,
    /// The dialect of the file's type ids.
    pub dialect: Dialect,
    /// The files, in shard order.
    pub files: Vec<SourceFile>,
}

impl Checkpoint {
    /// Opens a GGUF file, any shard of a split model, or a folder that contains one model in GGUF
    /// or safetensors files. A folder of safetensors has the metadata and the tensors that a GGUF
    /// file of the same model has.
    ///
    /// The file is mapped: only the header is read, whatever the size of the model. If another process
    /// truncates a mapped file, the next read of the lost part ends the process with SIGBUS; replacing a file
    /// by renaming another over it is safe, and so is [`Access::copy`].
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        Self::open_as(path, Access::default())
    }

    /// Like [`Self::open`], with the given [`Access`].
    pub fn open_as(path: &Path, access: Access) -> Result<Checkpoint, FormatError> {
        let path = match path.is_dir() {
            true => match folder::model_in(path)? {
                folder::Found::Gguf(file) => &file.clone(),
                folder::Found::Safetensors => return hf::open(path, access).map_err(|e| e.at(path)),
            },
            false => path,
        };
        let shards = split::shards(path, access)?;
        merge(shards).map_err(|e| e.at(path))
    }

    /// The tower of a folder of safetensors whose model sees, as the `mmproj` file in GGUF of the same model;
    /// `None` if the model does not see. Refuses towers of kinds that are not known.
    pub fn open_tower(folder: &Path, access: Access) -> Result<Option<Checkpoint>, FormatError> {
        hf::open_tower(folder, access).map_err(|e| e.at(folder))
    }

    /// Parses a model that is already in memory, such as one embedded in a binary.
    ///
    /// ```
    /// use tern_formats::{Checkpoint, Metadata, gguf::Writer};
    ///
    /// let mut file = Vec::new();
    /// Writer::new(Metadata::default()).write_to(&mut file, |_, _| Ok(()))?;
    /// assert!(Checkpoint::from_bytes(file.into())?.tensors.is_empty());
    /// # Ok::<(), tern_formats::FormatError>(())
    /// ```
    pub fn from_bytes(bytes: Bytes) -> Result<Checkpoint, FormatError> {
        let shard = Shard::parse(None, bytes)?;
        split::check_whole(&shard)?;
        merge(vec![shard])
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.bytes()).sum()
    }
}

/// Merges shards into one checkpoint: the metadata of the first, the tensors of all.
fn merge(shards: Vec<Shard>) -> Result<Checkpoint, FormatError> {
    let dialect = gguf::decide_dialect(shards.iter().map(|s| &s.header))?;
    let mut metadata = Metadata::default();
    let mut tensors = IndexMap::new();
    let mut files = Vec::new();
    for (i, Shard { path, bytes, header }) in shards.into_iter().enumerate() {
        files.push(SourceFile {
            path: path.clone(),
            bytes: bytes.len() as u64,
            kind: FileKind::Gguf { version: header.version, alignment: header.alignment },
        });
        let placed = gguf::place(&header, dialect, &bytes);
        let in_file = |e: FormatError| match &path {
            Some(path) => e.at(path),
            None => e,
        };
        for tensor in placed.map_err(in_file)? {
            match tensors.entry(tensor.name.clone()) {
                Entry::Vacant(slot) => slot.insert(tensor),
                Entry::Occupied(slot) => {
                    return Err(in_file(FormatError::Tensor(slot.key().clone(), TensorError::Duplicate)));
                }
            };
        }
        limits::check("the shards", tensors.len() as u64, MAX_TENSORS)?;
        if i == 0 {
            metadata = header.metadata;
        }
    }
    split::remove_keys(&mut metadata);
    Ok(Checkpoint { metadata, tensors, dialect, files })
}
