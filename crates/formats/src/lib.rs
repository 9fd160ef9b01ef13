//! Model files: a path or bytes in, a [`Checkpoint`] of metadata and mapped tensors out.
//!
//! ```no_run
//! let checkpoint = tern_formats::Checkpoint::open("model.gguf".as_ref())?;
//! println!("{} tensors, {} bytes", checkpoint.tensors.len(), checkpoint.total_bytes());
//! # Ok::<(), tern_formats::FormatError>(())
//! ```
//!
//! Files are untrusted: every count, length and offset is checked against the size of the file before it is
//! used, and each violation is a [`FormatError`] with a one-sentence message.

mod access;
mod adapter;
mod checkpoint;
mod convert;
mod error;
mod export_error;
mod folder;
mod folder_error;
pub mod gguf;
mod hf;
mod limits;
mod metadata;
pub mod quantize;
mod safetensors;
mod shard;
mod shown;
mod split;
mod staging;
mod tensor;
mod whole_file;

pub use access::Access;
pub use adapter::{Adapter, LowRank};
pub use checkpoint::{Checkpoint, FileKind, SourceFile};
pub use convert::{Conversion, ConvertedFile, TargetTensor};
pub use error::{FormatError, KeyError, SplitError, TensorError};
pub use export_error::{ConversionError, ExportError, TensorExport};
pub use folder_error::FolderError;
pub use hf::{ExportedFolder, FolderExport, ROUNDED, UNREAD, folder_tokenizer};
pub use metadata::{Metadata, MetadataError, Value};
pub use shown::{escaped, shown};
pub use tensor::Tensor;
pub use whole_file::write_whole_file;
