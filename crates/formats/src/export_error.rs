//! Why a model cannot be written: as a folder of safetensors, or in other formats.

use std::path::PathBuf;

use tern_quant::EncodeError;

use crate::shown;

/// Why a model cannot be written as a folder of safetensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The folder exists.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// Folders of the architecture are not written: the architecture, those that are.
    #[error("folders of architecture {} are not written; those of {} are", shown(.0), .1.join(", "))]
    Architecture(String, Vec<&'static str>),
    /// Tokenizers of this kind are not written.
    #[error("tokenizer `{}` is not written to folders; those of `gpt2` and `llama` are", shown(.0))]
    Tokenizer(String),
    /// Text is split in a way that is not written.
    #[error("key `tokenizer.ggml.pre`: the splitting `{}` is not written to folders", shown(.0))]
    Splitting(String),
    /// Tokens and their types differ in number.
    #[error("{tokens} tokens have {kinds} types")]
    Kinds {
        /// Tokens.
        tokens: usize,
        /// Types.
        kinds: usize,
    },
    /// Tokens and their scores differ in number.
    #[error("{tokens} tokens have {scores} scores")]
    Scores {
        /// Tokens.
        tokens: usize,
        /// Scores.
        scores: usize,
    },
    /// A key that a folder cannot hold.
    #[error("key `{}` is {value} and would be {found} in a folder", shown(key))]
    Key {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The value that a folder has.
        found: String,
    },
    /// A token whose kind a folder cannot hold.
    #[error("token {id} has type {kind} and would have {found} in a folder")]
    TokenKind {
        /// The token.
        id: usize,
        /// Its type.
        kind: i64,
        /// The type that a folder has.
        found: i64,
    },
    /// A tensor that a folder of the architecture cannot hold: the tensor, why not.
    #[error("tensor `{name}`{1}", name = shown(.0))]
    Tensor(String, TensorExport),
}

/// What a folder cannot hold of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorExport {
    /// It is missing in the model.
    #[error(" is missing")]
    Missing,
    /// It would be missing in the folder.
    #[error(" is missing in the folder")]
    Lost,
    /// Only the folder would have it.
    #[error(" is new in the folder")]
    New,
    /// The architecture, which has no name for it.
    #[error(" has no name in a folder of {0}")]
    NoName(&'static str),
    /// Its format, which cannot be decoded.
    #[error(": format {0} cannot be decoded")]
    Format(&'static str),
    /// Its shape, which is not that of experts.
    #[error(": want the matrices of experts, file has {0:?}")]
    NoExperts(Vec<u64>),
    /// Its rows, which are not those of heads.
    #[error(": {0} rows are no heads")]
    NoHeads(u64),
    /// No parameters of a configuration give its values.
    #[error(": no parameters of rope_type llama3 give these divisors")]
    NoParameters,
    /// Its shape, and that in the folder.
    #[error(" is {0:?} and would be {1:?}")]
    Shape(Vec<u64>, Vec<u64>),
    /// Its columns, and those in the folder.
    #[error(" has {0} columns and would have {1}")]
    Columns(usize, usize),
    /// It cannot be encoded.
    #[error(": {0}")]
    Encode(EncodeError),
    /// A weight that would be another one.
    #[error(": weight {col} of row {row} is {weight} and would be {found}")]
    Weight {
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// Its value.
        weight: String,
        /// Its value in the folder.
        found: String,
    },
}

/// Why a tensor cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// Its format, which cannot be decoded.
    #[error("format {0} cannot be decoded")]
    NotDecoded(&'static str),
    /// The new format, which would change its weights in a conversion that must be exact.
    #[error("{0} would change its weights")]
    NotExact(&'static str),
    /// A weight that would be another one in a conversion that must be exact.
    #[error("weight {col} of row {row} is {weight}, and would be {found} in {format}")]
    Weight {
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// Its value.
        weight: String,
        /// Its value in the new format.
        found: String,
        /// The new format.
        format: &'static str,
    },
    /// The importance of columns is that of another tensor.
    #[error("importance has {found} values, the tensor {matrices} matrices of {cols} columns")]
    Importance {
        /// Values of the importance.
        found: usize,
        /// Matrices of the tensor.
        matrices: usize,
        /// Columns of each.
        cols: usize,
    },
    /// The new format cannot be written, or not with these weights.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A thread failed.
    #[error("a thread has panicked")]
    Panicked,
}

impl ConversionError {
    /// Whether a conversion that may change weights would succeed.
    pub fn needs_quantizing(&self) -> bool {
        matches!(self, ConversionError::NotExact(_) | ConversionError::Weight { .. })
    }
}
