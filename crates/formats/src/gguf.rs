//! GGUF, versions 2 and 3, little-endian: reading headers, recognising dialects of
//! type ids, and writing files.
//!
//! ```text
//! "GGUF" | u32 version | u64 tensors | u64 pairs | pairs | tensor infos | padding | data
//! ```

mod cursor;
mod dialect;
mod place;
mod read;
mod size;
mod value_type;
mod write;

pub use write::Writer;

pub(crate) use dialect::decide as decide_dialect;
pub(crate) use place::place;
pub(crate) use read::{Header, read};

/// Longest key in bytes, from the specification.
const MAX_KEY: u64 = 65_535;
/// Longest tensor name in bytes. ggml accepts 63; other writers are less strict.
const MAX_NAME: u64 = 255;
/// Alignment of tensors if the file has no `general.alignment`.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The key of the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";
