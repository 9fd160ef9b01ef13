//! One file of a model, with its header parsed.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::{
    Access, FormatError,
    gguf::{self, Header},
};

/// One file with its parsed header.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: Option<PathBuf>,
    pub(crate) bytes: Bytes,
    pub(crate) header: Header,
}

impl Shard {
    pub(crate) fn parse(path: Option<PathBuf>, bytes: Bytes) -> Result<Shard, FormatError> {
        let header = gguf::read(&bytes)?;
        Ok(Shard { path, bytes, header })
    }

    pub(crate) fn open(path: &Path, access: Access) -> Result<Shard, FormatError> {
        Shard::parse(Some(path.into()), access.bytes(path)?).map_err(|e| e.at(path))
    }
}
