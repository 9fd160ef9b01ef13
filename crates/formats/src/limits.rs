//! Limits of what a file declares: far above those of real models, and low enough that reading a hostile file
//! takes seconds and little memory.

use crate::FormatError;

/// Tensors of a model in all of its files. The most in known models are some 300,000, of
/// 400 experts in 60 layers.
pub(crate) const MAX_TENSORS: u64 = 1 << 20;
/// Keys of a GGUF file; usual are 30 to 60.
pub(crate) const MAX_KEYS: u64 = 1 << 16;
/// Elements of all arrays of a GGUF file; a large vocabulary with its merges has some 1.5 million.
pub(crate) const MAX_ELEMENTS: u64 = 1 << 24;
/// Bytes of a JSON file; the largest `tokenizer.json` has some 35 MB.
pub(crate) const MAX_JSON: u64 = 1 << 26;

/// Refuses more of something than its limit.
pub(crate) fn check(what: &str, count: u64, most: u64) -> Result<(), FormatError> {
    match count <= most {
        true => Ok(()),
        false => Err(FormatError::TooMany(what.into(), count, most)),
    }
}
