//! Model files: a path or bytes in, a [`Checkpoint`] of metadata and mapped tensors out.

mod metadata;

pub use metadata::{Metadata, MetadataError, Value};
