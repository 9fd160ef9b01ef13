//! GGUF, versions 2 and 3, little-endian: what a header says, whose type ids it uses, and how to write one.
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

/// Longest key in bytes, as the specification has it.
const MAX_KEY: u64 = 65_535;
/// Longest tensor name in bytes. ggml takes 63; other writers are less strict.
const MAX_NAME: u64 = 255;
/// Tensors are padded to this where `general.alignment` does not say otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The key that says so.
const ALIGNMENT_KEY: &str = "general.alignment";
