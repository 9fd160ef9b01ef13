//! Errors of vocabularies.

use tern_formats::{MetadataError, shown};

/// Why a vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// `tokenizer.ggml.model` names a model that is not implemented.
    #[error("tokenizer model `{}` is not supported: want gpt2, llama, gemma4 or bert", shown(.0))]
    Model(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not known.
    #[error("pre-tokenizer `{}` is not known, and another would give other tokens", shown(.0))]
    Pre(String),
    /// An array that goes with the tokens is too short.
    #[error("metadata key `{key}`: want {want} entries, file has {found}")]
    Length {
        /// The key.
        key: &'static str,
        /// The number of tokens.
        want: usize,
        /// The number of entries.
        found: usize,
    },
    /// A token type that is none of the six.
    #[error("token {id}: want a type from 0 to 6, file has {found}")]
    TokenType {
        /// The token.
        id: usize,
        /// Its type in the file.
        found: usize,
    },
    /// The special tokens are too many or too long to search for.
    #[error("special tokens: {0}")]
    Markers(String),
}
