//! What is known of a stored file.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::file_id;
use crate::request::prompt::now;

/// The record of a file, as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) id: String,
    /// The digest of the API key that it belongs to.
    pub(crate) owner: String,
    pub(crate) bytes: u64,
    /// Seconds since 1970, as all times.
    pub(crate) created_at: u64,
    pub(crate) expires_at: Option<u64>,
    /// As the client calls it.
    pub(crate) filename: String,
    pub(crate) purpose: String,
}

impl FileRecord {
    /// A file that is made now.
    pub(crate) fn new(owner: &str, filename: String, purpose: &str, expires_at: Option<u64>) -> FileRecord {
        FileRecord {
            id: file_id(),
            owner: owner.to_owned(),
            bytes: 0,
            created_at: now(),
            expires_at,
            filename,
            purpose: purpose.to_owned(),
        }
    }

    pub(crate) fn has_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= now())
    }

    /// The object of the API.
    pub(crate) fn json(&self) -> Value {
        json!({
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "expires_at": self.expires_at, "filename": self.filename, "purpose": self.purpose,
            "status": "processed", "status_details": null,
        })
    }
}
