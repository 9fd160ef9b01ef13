//! Why a model file was refused, in sentences that name the thing and what was expected.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::shown;

/// Why a model could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The system could not read the path.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, #[source] io::Error),
    /// The file at the path was refused.
    #[error("{}: {}", .0.display(), .1)]
    In(PathBuf, #[source] Box<FormatError>),
    /// The file shrank while it was copied: the bytes it had at first.
    #[error("the file had {0} bytes and became shorter while it was read")]
    Shrank(u64),
    /// The system did not give memory for a copy: the bytes, and its words.
    #[error("no memory for a copy of {0} bytes: {1}")]
    NoMemory(u64, #[source] io::Error),
    /// The system did not keep the bytes in memory: how many, and its words.
    #[error("{0} bytes cannot be locked in memory: {1}; `ulimit -l` shows the limit")]
    NotLocked(u64, #[source] io::Error),
    /// Writing failed.
    #[error("cannot write the model: {0}")]
    Write(#[source] io::Error),

    /// A folder without any model.
    #[error("the folder has no .gguf file")]
    EmptyFolder,
    /// A folder with more than one model: their names.
    #[error("the folder has {} models, name one of them: {}", .0.len(), .0.join(", "))]
    ManyModels(Vec<String>),
    /// A folder with safetensors only.
    #[error("the folder has only safetensors files, which are not supported yet: want a .gguf file")]
    OnlySafetensors,

    /// The first bytes are not the magic.
    #[error("not a GGUF file: it starts with \"{}\", want \"GGUF\"", .0.escape_ascii())]
    NotGguf(Vec<u8>),
    /// The obsolete first version.
    #[error("GGUF version 1 is obsolete, want version 2 or 3: convert the model again")]
    VersionOne,
    /// A big-endian file of this version.
    #[error("the file is big-endian (GGUF version {0}), want little-endian")]
    BigEndian(u32),
    /// A version of the future or of nobody.
    #[error("GGUF version {0} is unknown, want version 2 or 3")]
    UnknownVersion(u32),
    /// The file ends early: what was being read, the bytes it needs, the bytes that are left.
    #[error("the file ends inside {0}: want {1} more bytes, {2} are left")]
    Truncated(String, u64, u64),
    /// More entries than the rest of the file can hold: what, how many, the bytes that are left.
    #[error("{0}: {1} entries cannot fit in the {2} bytes that are left")]
    Count(String, u64, u64),
    /// A header beyond all reason: the bytes it may have.
    #[error("the header is larger than {0} bytes, the most that is read")]
    HeaderTooLarge(u64),

    /// One key-value pair is wrong.
    #[error("metadata key `{}`: {}", shown(.0), .1)]
    Key(String, #[source] KeyError),
    /// One tensor is wrong.
    #[error("tensor `{}`: {}", shown(.0), .1)]
    Tensor(String, #[source] TensorError),
    /// Two tensors claim the same bytes.
    #[error(
        "tensors `{one}` and `{two}` overlap: `{one}` ends at offset {2}, `{two}` starts at {3}",
        one = shown(.0),
        two = shown(.1)
    )]
    Overlap(String, String, u64, u64),

    /// Type 42 with offsets that match no known block size: how each reading fails.
    #[error("type id 42 fits no known layout: {}", .0.join("; "))]
    NoReading(Vec<String>),
    /// Type 42 with offsets that match several block sizes.
    #[error("type id 42 could be any of {}: the offsets of the file fit all of them", .0.join(", "))]
    AmbiguousReading(Vec<String>),
    /// Weights in a rotated basis that are not undone yet: the key that says so.
    #[error("metadata key `{}`: the weights are in a rotated basis, which is not implemented yet", shown(.0))]
    Rotated(String),

    /// The shards do not make one model.
    #[error(transparent)]
    Split(#[from] SplitError),
}

impl FormatError {
    /// Says which file; an error that says it already stays as it is.
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
    /// A key of no bytes.
    #[error("a key must not be empty")]
    Empty,
    /// A key of too many bytes.
    #[error("the key has {0} bytes, want at most {1}")]
    TooLong(u64, u64),
    /// The key came before.
    #[error("the key is there twice")]
    Duplicate,
    /// The key or the value is not text.
    #[error("want UTF-8 text, file has other bytes")]
    NotUtf8,
    /// A value type that GGUF does not have.
    #[error("value type {0} is unknown, want 0 to 12")]
    UnknownType(u32),
    /// An array of arrays.
    #[error("arrays of arrays are not supported")]
    NestedArray,
    /// A bool that is not one.
    #[error("want a bool of 0 or 1, file has {0}")]
    Bool(u8),
    /// `general.alignment` with another type.
    #[error("want a u32, file has value type {0}")]
    AlignmentType(u32),
    /// `general.alignment` to be written as something else than an unsigned integer.
    #[error("want an unsigned integer")]
    AlignmentNotUint,
    /// `general.alignment` with an impossible value.
    #[error("want a power of two, file has {0}")]
    Alignment(u64),
}

/// What is wrong with a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// A name that is empty or too long, in bytes.
    #[error("the name has {0} bytes, want 1 to {1}")]
    NameLength(u64, u64),
    /// The name is not text.
    #[error("the name is not UTF-8")]
    NameNotUtf8,
    /// The name came before.
    #[error("the name is there twice")]
    Duplicate,
    /// More than four dimensions.
    #[error("{0} dimensions, want 1 to 4")]
    Dimensions(u32),
    /// A dimension of zero.
    #[error("shape {0:?} has a zero dimension")]
    ZeroDimension(Vec<u64>),
    /// More weights than a machine can count.
    #[error("shape {0:?} is too large to count")]
    TooLarge(Vec<u64>),
    /// A type id that nobody defines.
    #[error("type id {0} is unknown")]
    UnknownType(u32),
    /// A type of Microsoft's bitnet.cpp whose bytes depend on the build that wrote them.
    #[error("type {0} of bitnet.cpp (id {1}) is not supported: convert the model to I2_S")]
    BuildSpecific(&'static str, u32),
    /// A format without a type id cannot be written.
    #[error("format {0} has no GGUF type id")]
    NoTypeId(&'static str),
    /// Rows that are not whole blocks: columns, weights in a block, format.
    #[error("rows of {0} weights, want a multiple of {1} for {2}")]
    Ragged(u64, u64, &'static str),
    /// An offset that is not a multiple of the alignment.
    #[error("offset {0} is not a multiple of the alignment {1}")]
    Misaligned(u64, u64),
    /// Bytes outside the file: offset, size, bytes that are there.
    #[error("offset {0} and size {1} reach past the {2} bytes of tensor data in the file")]
    OutOfBounds(u64, u64, u64),
    /// A writer was given another number of bytes than the shape needs.
    #[error("want {0} bytes of data, {1} were written")]
    DataSize(u64, u64),
}

/// Why shards do not make one model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A shard whose siblings cannot be found: its number and how many there are.
    #[error("the file is shard {0} of {1}, want the name <prefix>-{0:05}-of-{1:05}.gguf to find the others")]
    Unnamed(u64, u64),
    /// A shard file that is not there.
    #[error("shard {0} of {1} is missing: want the file {name}", name = .2.display())]
    Missing(u64, u64, PathBuf),
    /// A shard name without the metadata of a shard.
    #[error("the file is named as shard {0} of {1}, but has no `split.count`")]
    NoCount(u64, u64),
    /// A key that disagrees with the name: key, wanted, found.
    #[error("`{0}` is {2}, want {1} as the name of the file says")]
    Disagrees(&'static str, u64, String),
    /// Shards that together have another number of tensors.
    #[error("`split.tensors.count` is {0}, but the shards have {1} tensors")]
    TensorCount(String, u64),
}
