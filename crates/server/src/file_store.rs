//! The files of `/v1/files`: a folder with the contents and a record of each, which belong to API keys.
//!
//! Names on disk are made from random ids, never from what a client sends: a client's id is looked up among
//! the records, and its file name is only a text in one.

mod private;
mod record;
mod upload;

pub(crate) use record::FileRecord;
pub(crate) use upload::Upload;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::error::{ApiError, Result};
use crate::ids;
use crate::models::names::shortened;
use crate::request::prompt::now;

/// How much each API key may store; without keys, all clients together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Maximum bytes of a file.
    pub max_file_bytes: u64,
    /// Maximum bytes of all files of a key, with the results of its batches.
    pub max_bytes: u64,
    /// Maximum number of files of a key.
    pub max_files: usize,
}

impl Default for FileLimits {
    /// 512 MiB, 8 GiB and 10,000 files.
    fn default() -> FileLimits {
        FileLimits { max_file_bytes: 512 << 20, max_bytes: 8 << 30, max_files: 10_000 }
    }
}

/// A folder of files.
pub struct FileStore {
    folder: PathBuf,
    limits: FileLimits,
    state: Mutex<State>,
    /// Locked as long as the store is open.
    _lock: File,
}

#[derive(Default)]
struct State {
    /// By id.
    files: BTreeMap<String, FileRecord>,
    /// Bytes that uploads have written, by owner.
    uploading: BTreeMap<String, u64>,
}

impl FileStore {
    /// Opens a folder, which is made if it is missing. Only one process may have it open.
    pub fn open(folder: &Path, limits: FileLimits) -> io::Result<FileStore> {
        private::create_folder(folder)?;
        let lock = private::create(&folder.join("lock"))?;
        if let Err(fs::TryLockError::WouldBlock) = lock.try_lock() {
            return Err(io::Error::other("another server uses this folder"));
        }
        let (folder, state) = (folder.to_path_buf(), Mutex::default());
        let store = FileStore { folder, limits, state, _lock: lock };
        for path in store.listed(".part")? {
            fs::remove_file(path)?; // uploads that were interrupted
        }
        for record in store.records::<FileRecord>("file-")? {
            let content = fs::symlink_metadata(store.content(&record.id));
            if content.is_ok_and(|content| content.is_file() && content.len() == record.bytes) {
                store.lock().files.insert(record.id.clone(), record);
            } else {
                tracing::warn!(file = record.id, "the content is missing or damaged: the file is not served");
            }
        }
        Ok(store)
    }

    /// Begins a file of this owner.
    pub(crate) fn upload(self: &Arc<Self>, owner: String) -> Result<Upload> {
        self.check_count(&owner)?;
        Upload::new(Arc::clone(self), owner)
    }

    /// The record of a file of this owner.
    pub(crate) fn get(&self, owner: &str, id: &str) -> Result<FileRecord> {
        let state = self.lock();
        let found = state.files.get(id).filter(|file| file.owner == owner && !file.has_expired());
        found.cloned().ok_or_else(|| not_found(id))
    }

    /// The files of this owner, oldest first.
    pub(crate) fn list(&self, owner: &str) -> Vec<FileRecord> {
        let state = self.lock();
        let mut files: Vec<FileRecord> =
            state.files.values().filter(|file| file.owner == owner && !file.has_expired()).cloned().collect();
        files.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        files
    }

    /// Opens the content of a file of this owner.
    pub(crate) fn read(&self, owner: &str, id: &str) -> Result<(FileRecord, File)> {
        let record = self.get(owner, id)?;
        let file = File::open(self.content(id)).map_err(|error| failed("read", &error))?;
        Ok((record, file))
    }

    pub(crate) fn delete(&self, owner: &str, id: &str) -> Result<()> {
        let record = self.get(owner, id)?;
        self.remove(&record).map_err(|error| failed("delete", &error))
    }

    /// Deletes files whose time is over.
    pub(crate) fn sweep(&self) {
        let expired: Vec<FileRecord> =
            self.lock().files.values().filter(|file| file.has_expired()).cloned().collect();
        for record in expired {
            if let Err(error) = self.remove(&record) {
                tracing::warn!(file = record.id, %error, "an expired file cannot be deleted");
            }
        }
    }

    /// Makes a file of a working file, which loses its name; if that fails, nothing has changed.
    pub(crate) fn adopt(&self, working: &Path, record: FileRecord) -> io::Result<FileRecord> {
        let bytes = fs::metadata(working)?.len();
        let record = FileRecord { bytes, ..record };
        let content = self.content(&record.id);
        fs::rename(working, &content)?;
        if let Err(error) = self.write(&record.id, &record) {
            fs::rename(content, working)?;
            return Err(error);
        }
        self.lock().files.insert(record.id.clone(), record.clone());
        Ok(record)
    }

    /// The path of a file's content.
    pub(crate) fn content(&self, id: &str) -> PathBuf {
        self.path(id, ".content")
    }

    /// A path in the folder. `id` is one that this process made.
    pub(crate) fn path(&self, id: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{id}{ending}"))
    }

    /// Writes the record of an id, whole or not at all.
    pub(crate) fn write(&self, id: &str, record: &impl Serialize) -> io::Result<()> {
        let part = self.path(id, ".json.part");
        let mut file = private::create(&part)?;
        serde_json::to_writer(&mut file, record)?;
        file.sync_all()?;
        fs::rename(part, self.path(id, ".json"))
    }

    /// The records whose id begins with `prefix`; damaged ones are skipped with a warning.
    pub(crate) fn records<T: DeserializeOwned>(&self, prefix: &str) -> io::Result<Vec<T>> {
        let mut records = vec![];
        for path in self.listed(".json")? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !name.starts_with(prefix) {
                continue;
            }
            match fs::read(&path)
                .map_err(serde_json::Error::io)
                .and_then(|text| serde_json::from_slice(&text))
            {
                Ok(record) => records.push(record),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a record is damaged and is skipped")
                }
            }
        }
        Ok(records)
    }

    /// Bytes that an owner may still store.
    pub(crate) fn left(&self, owner: &str) -> u64 {
        let state = self.lock();
        let stored: u64 =
            state.files.values().filter(|file| file.owner == owner).map(|file| file.bytes).sum();
        let uploading = state.uploading.get(owner).copied().unwrap_or_default();
        self.limits.max_bytes.saturating_sub(stored).saturating_sub(uploading)
    }

    /// The regular files of the folder whose name has this ending. Links are not followed.
    fn listed(&self, ending: &str) -> io::Result<Vec<PathBuf>> {
        let mut paths = vec![];
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.ends_with(ending)) && entry.file_type()?.is_file() {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }

    fn check_count(&self, owner: &str) -> Result<()> {
        let (count, most) = (self.list(owner).len(), self.limits.max_files);
        if count < most {
            return Ok(());
        }
        let message = format!("the limit of {most} files is reached: delete some");
        Err(ApiError::new(StatusCode::FORBIDDEN, message).code("too_many_files"))
    }

    fn remove(&self, record: &FileRecord) -> io::Result<()> {
        fs::remove_file(self.path(&record.id, ".json"))?; // a content without a record is no file
        self.lock().files.remove(&record.id);
        fs::remove_file(self.content(&record.id))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new id.
pub(crate) fn file_id() -> String {
    ids::id("file-")
}

/// When something ends that is kept for `seconds`.
pub(crate) fn expiry(seconds: Option<u64>) -> Option<u64> {
    seconds.map(|seconds| now().saturating_add(seconds))
}

/// The response about an id that no file of the client has.
pub(crate) fn not_found(id: &str) -> ApiError {
    let message = format!("no file {:?}: it does not exist, was deleted or has expired", shortened(id));
    ApiError::new(StatusCode::NOT_FOUND, message).code("file_not_found")
}

/// The response about a failure of the disk.
pub(crate) fn failed(what: &str, error: &io::Error) -> ApiError {
    tracing::error!(%error, "cannot {what} a file");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let message = "the server's disk is full: delete files, or retry later";
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, message).code("disk_full")
        }
        _ => ApiError::internal(),
    }
}
