//! Errors of vocabularies.

use tern_formats::{MetadataError, shown};

/// Why a vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An unsupported `tokenizer.ggml.model`.
    #[error("tokenizer model `{}` is not supported: want gpt2, llama, gemma4, bert or t5", shown(.0))]
    Model(String),
    /// An unknown `tokenizer.ggml.pre`.
    #[error("unknown pre-tokenizer `{}`: a different one would produce wrong tokens", shown(.0))]
    Pre(String),
    /// An array with one entry per token is too short.
    #[error("metadata key `{key}`: want {want} entries, file has {found}")]
    Length {
        /// The key.
        key: &'static str,
        /// The number of tokens.
        want: usize,
        /// The number of entries.
        found: usize,
    },
    /// An unknown token type.
    #[error("token {id}: want a type from 0 to 6, file has {found}")]
    TokenType {
        /// The token.
        id: usize,
        /// Its type in the file.
        found: usize,
    },
    /// The special tokens are too many or too long for the search automaton.
    #[error("special tokens: {0}")]
    Markers(String),
}
