//! A file that is being written; it exists for clients once it is whole.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::StatusCode;

use super::{FileRecord, FileStore, failed, private};
use crate::http::error::{ApiError, Result};
use crate::ids;

/// A file that is being written. Dropping it unfinished deletes what was written.
pub(crate) struct Upload {
    store: Arc<FileStore>,
    owner: String,
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Upload {
    pub(super) fn new(store: Arc<FileStore>, owner: String) -> Result<Upload> {
        let path = store.path(&ids::id("upload-"), ".part");
        let file = private::create(&path).map_err(|error| failed("create", &error))?;
        Ok(Upload { store, owner, file, path, bytes: 0 })
    }

    /// Appends bytes, within the limits of a file and of its owner.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let (more, limits) = (bytes.len() as u64, self.store.limits);
        let refused = |message| {
            let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message);
            Err(ApiError { param: Some("file".into()), ..error.code("file_too_large") })
        };
        if self.bytes + more > limits.max_file_bytes {
            return refused(format!("file: exceeds the limit of {} bytes", limits.max_file_bytes));
        }
        if more > self.store.left(&self.owner) {
            return refused(format!(
                "file: all files together exceed the limit of {} bytes: delete some",
                limits.max_bytes
            ));
        }
        self.bytes += more;
        *self.store.lock().uploading.entry(self.owner.clone()).or_default() += more;
        self.file.write_all(bytes).map_err(|error| failed("write", &error))
    }

    /// Makes it a file.
    pub(crate) fn finish(
        self,
        filename: String,
        purpose: &str,
        expires_at: Option<u64>,
    ) -> Result<FileRecord> {
        self.store.check_count(&self.owner)?;
        self.file.sync_all().map_err(|error| failed("write", &error))?;
        let record = FileRecord::new(&self.owner, filename, purpose, expires_at);
        self.store.adopt(&self.path, record).map_err(|error| failed("write", &error))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(uploading) = state.uploading.get_mut(&self.owner) {
            *uploading = uploading.saturating_sub(self.bytes);
            if *uploading == 0 {
                state.uploading.remove(&self.owner);
            }
        }
        drop(state);
        let _ = fs::remove_file(&self.path); // of a finished one the path is gone
    }
}
