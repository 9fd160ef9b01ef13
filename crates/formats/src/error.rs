//! Why a model file was rejected: each message names the item and what was expected.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{ConversionError, ExportError, FolderError, shown};

/// Why a model could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The system could not read the path.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, #[source] io::Error),
    /// The file at the path was rejected.
    #[error("{}: {}", .0.display(), .1)]
    In(PathBuf, #[source] Box<FormatError>),
    /// The file shrank while it was copied: its size at first.
    #[error("the file had {0} bytes and was truncated while it was read")]
    Shrank(u64),
    /// The copy took longer than it may: the bytes that were read, and all.
    #[error("reading took too long and was given up after {0} of {1} bytes")]
    Late(u64, u64),
    /// The memory for a copy could not be allocated: the bytes, and the system's error.
    #[error("cannot allocate {0} bytes for a copy of the file: {1}")]
    NoMemory(u64, #[source] io::Error),
    /// The file could not be mapped: its bytes, the system's error, and the limit of the
    /// address space if there is one.
    #[error("cannot map the {0} bytes of the file: {1}{limit}", limit = limited(.2))]
    NotMapped(u64, #[source] io::Error, Option<u64>),
    /// The bytes could not be locked in memory: the bytes, and the system's error.
    #[error("cannot lock {0} bytes in memory: {1}; `ulimit -l` shows the limit")]
    NotLocked(u64, #[source] io::Error),
    /// Writing failed.
    #[error("cannot write the model: {0}")]
    Write(#[source] io::Error),

    /// A folder without any model.
    #[error("the folder has no .gguf or .safetensors file")]
    EmptyFolder,
    /// A folder with more than one model: their names.
    #[error("the folder has {} models, choose one: {}", .0.len(), .0.join(", "))]
    ManyModels(Vec<String>),
    /// A safetensors file that is not one: what is wrong.
    #[error("{0}")]
    Safetensors(String),
    /// A folder of safetensors whose configuration, tokenizer or tensors cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A model that cannot be written as a folder.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A tensor that cannot be converted: its name, why not.
    #[error("{name}: {1}", name = shown(.0))]
    Conversion(String, #[source] ConversionError),
    /// A path that a file cannot replace: the path, what it names.
    #[error("{path} is {1}: want the name of a file", path = .0.display())]
    NotReplaceable(PathBuf, &'static str),
    /// Nothing was written to the path.
    #[error("{}: nothing was written", .0.display())]
    NothingWritten(PathBuf),
    /// A file that differs from what was written to it.
    #[error("{}: the file differs from what was written to it", .0.display())]
    WrittenDiffers(PathBuf),
    /// A model of more files than their names can number.
    #[error("{0} files: names of split models have five digits, use larger files")]
    ManyFiles(u64),
    /// A file has another number of tensors than were written to it: written, found.
    #[error("{0} tensors were written, the file has {1}")]
    WrittenTensors(usize, usize),
    /// An importance matrix that was written cannot be read.
    #[error(transparent)]
    Importance(Box<crate::quantize::ImportanceError>),
    /// A key is missing or has a wrong value.
    #[error(transparent)]
    Metadata(#[from] crate::MetadataError),

    /// An adapter that cannot be used, or not with its base model: why.
    #[error("{0}")]
    Adapter(String),

    /// The first bytes are not the magic.
    #[error("not a GGUF file: it starts with \"{}\", want \"GGUF\"", .0.escape_ascii())]
    NotGguf(Vec<u8>),
    /// The obsolete first version.
    #[error("GGUF version 1 is obsolete, want version 2 or 3: convert the model again")]
    VersionOne,
    /// A big-endian file of this version.
    #[error("the file is big-endian (GGUF version {0}), want little-endian")]
    BigEndian(u32),
    /// An unknown version.
    #[error("GGUF version {0} is unknown, want version 2 or 3")]
    UnknownVersion(u32),
    /// The file ends early: what was being read, the bytes needed, the bytes left.
    #[error("the file ends inside {0}: want {1} more bytes, {2} are left")]
    Truncated(String, u64, u64),
    /// More entries than the rest of the file can hold: what, how many, the bytes left.
    #[error("{0}: {1} entries cannot fit in the remaining {2} bytes")]
    Count(String, u64, u64),
    /// More entries than are supported: what, how many, the limit.
    #[error("{0}: {1} entries, want at most {2}")]
    TooMany(String, u64, u64),
    /// A header that exceeds the limit in bytes.
    #[error("the header exceeds the limit of {0} bytes")]
    HeaderTooLarge(u64),

    /// An invalid key-value pair.
    #[error("metadata key `{}`: {}", shown(.0), .1)]
    Key(String, #[source] KeyError),
    /// An invalid tensor.
    #[error("tensor `{}`: {}", shown(.0), .1)]
    Tensor(String, #[source] TensorError),
    /// Two tensors share bytes.
    #[error(
        "tensors `{one}` and `{two}` overlap: `{one}` ends at offset {2}, `{two}` starts at {3}",
        one = shown(.0),
        two = shown(.1)
    )]
    Overlap(String, String, u64, u64),

    /// Type 42 with offsets that match no known block size: how each interpretation fails.
    #[error("type id 42 matches no known layout: {}", .0.join("; "))]
    NoReading(Vec<String>),
    /// Type 42 with offsets that match several block sizes.
    #[error("type id 42 is ambiguous: the offsets in the file match {}", .0.join(" and "))]
    AmbiguousReading(Vec<String>),

    /// The shards do not form one model.
    #[error(transparent)]
    Split(#[from] SplitError),
}

/// What a message says about the limit of the address space.
fn limited(limit: &Option<u64>) -> String {
    limit.map_or(String::new(), |limit| format!("; the process is limited to {limit} bytes (ulimit -v)"))
}

impl FormatError {
    /// Adds the path, unless the error already has one.
    pub(crate) fn at(self, path: &Path) -> FormatError {
        match self {
            FormatError::Io(..) | FormatError::In(..) => self,
            other => FormatError::In(path.into(), Box::new(other)),
        }
    }
}

/// What is wrong with a key-value pair.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// An empty key.
    #[error("the key must not be empty")]
    Empty,
    /// A key that is too long: its bytes, the limit.
    #[error("the key has {0} bytes, want at most {1}")]
    TooLong(u64, u64),
    /// A key that occurs twice.
    #[error("duplicate key")]
    Duplicate,
    /// A key or value that is not UTF-8.
    #[error("want UTF-8 text, file has invalid bytes")]
    NotUtf8,
    /// A value type that GGUF does not have.
    #[error("value type {0} is unknown, want 0 to 12")]
    UnknownType(u32),
    /// An array of arrays.
    #[error("arrays of arrays are not supported")]
    NestedArray,
    /// A bool that is neither 0 nor 1.
    #[error("want a bool of 0 or 1, file has {0}")]
    Bool(u8),
    /// `general.alignment` with another type.
    #[error("want a u32, file has value type {0}")]
    AlignmentType(u32),
    /// `general.alignment` to be written as something other than an unsigned integer.
    #[error("want an unsigned integer")]
    AlignmentNotUint,
    /// `general.alignment` with an invalid value.
    #[error("want a power of two, file has {0}")]
    Alignment(u64),
}

/// What is wrong with a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// A name that is empty or too long: its bytes, the limit.
    #[error("the name has {0} bytes, want 1 to {1}")]
    NameLength(u64, u64),
    /// A name that is not UTF-8.
    #[error("the name is not UTF-8")]
    NameNotUtf8,
    /// A name that occurs twice.
    #[error("duplicate name")]
    Duplicate,
    /// More than four dimensions.
    #[error("{0} dimensions, want 1 to 4")]
    Dimensions(u32),
    /// A dimension of zero.
    #[error("shape {0:?} has a zero dimension")]
    ZeroDimension(Vec<u64>),
    /// A number of weights that overflows.
    #[error("shape {0:?} is too large")]
    TooLarge(Vec<u64>),
    /// An unknown type id.
    #[error("type id {0} is unknown")]
    UnknownType(u32),
    /// A type of Microsoft's bitnet.cpp whose layout depends on the build that wrote the file.
    #[error("type {0} of bitnet.cpp (id {1}) is not supported: convert the model to I2_S")]
    BuildSpecific(&'static str, u32),
    /// A format without a type id cannot be written.
    #[error("format {0} has no GGUF type id")]
    NoTypeId(&'static str),
    /// Rows that are not a whole number of blocks: columns, weights per block, format.
    #[error("rows of {0} weights, want a multiple of {1} for {2}")]
    Ragged(u64, u64, &'static str),
    /// An offset that is not a multiple of the alignment.
    #[error("offset {0} is not a multiple of the alignment {1}")]
    Misaligned(u64, u64),
    /// Bytes outside the file: offset, size, bytes of tensor data in the file.
    #[error("offset {0} and size {1} exceed the {2} bytes of tensor data in the file")]
    OutOfBounds(u64, u64, u64),
    /// A writer received a different number of bytes than the shape needs.
    #[error("want {0} bytes of data, {1} were written")]
    DataSize(u64, u64),
    /// Another number of bytes was computed than the shape needs: expected, computed.
    #[error("want {0} bytes, {1} were computed")]
    Computed(u64, u64),
    /// The system refused the memory for computed bytes: how many.
    #[error("the system refuses {0} bytes of memory")]
    NoMemory(u64),
}

/// Why shards do not form one model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A shard whose file name does not lead to the others: its number and the number of shards.
    #[error("the file is shard {0} of {1}: want the name <prefix>-{0:05}-of-{1:05}.gguf to find the others")]
    Unnamed(u64, u64),
    /// A missing shard file.
    #[error("shard {0} of {1} is missing: want the file {name}", name = .2.display())]
    Missing(u64, u64, PathBuf),
    /// A file with a shard's name, without a shard's metadata.
    #[error("the file is named as shard {0} of {1}, but has no `split.count`")]
    NoCount(u64, u64),
    /// A key that disagrees with the file name: key, expected, found.
    #[error("`{0}` is {2}, want {1} as in the file name")]
    Disagrees(&'static str, u64, String),
    /// A number of tensors that differs from the metadata.
    #[error("`split.tensors.count` is {0}, but the shards have {1} tensors")]
    TensorCount(String, u64),
}
