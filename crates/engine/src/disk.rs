//! The prefix cache on disk: pages and snapshots that leave memory go to a bounded folder and come back, also
//! after a restart.
//!
//! A file holds one page or one state, and its name is the key of its content: a hash of the model, the
//! adapters and all tokens up to its end ([`key`]). What a file says of itself is compared byte by byte with
//! what is expected before anything of it is used ([`file`]). One thread reads and writes ([`worker`]); the
//! engine only copies bytes between two steps ([`restore`]). Nothing waits for a slow or a full disk: what
//! cannot be written is dropped, and what does not come back is computed.

mod file;
mod folder;
mod index;
pub(crate) mod key;
pub(crate) mod restore;
#[cfg(test)]
mod tests;
mod worker;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use folder::Folder;
use index::Index;

pub(crate) use file::Item;
pub(crate) use key::{FileId, Key, Keys};
pub(crate) use worker::{Counters, Queue, Read, ReadJob, WriteJob};

/// Where lines for the log go.
pub type DiskLog = Arc<dyn Fn(&str) + Send + Sync>;

/// A folder of pages and snapshots, with the thread that reads and writes it. Clones share it, also between
/// engines of several models.
#[derive(Clone)]
pub struct DiskCache(Arc<Owner>);

/// Ends the thread with the last clone.
struct Owner {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// Why a folder cannot be used as a cache.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another process has it open.
    #[error("{}: another process uses this folder as its cache", .0.display())]
    InUse(PathBuf),
    /// Other users could read what is in it, or replace it.
    #[error("{}: other users may write to this folder; make it private (chmod 700)", .0.display())]
    NotPrivate(PathBuf),
    /// The system refused an operation.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
}

/// What a folder holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Files of pages and snapshots.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl DiskCache {
    /// Opens a folder, which is made if it is missing, for files of at most `most_bytes` together. One
    /// process at a time may have it open.
    pub fn open(folder: &Path, most_bytes: u64, log: DiskLog) -> Result<DiskCache, DiskError> {
        let folder = Folder::open(folder)?;
        let (files, foreign) = folder.scan()?;
        if foreign > 0 {
            let path = folder.path().display();
            log(&format!("{path}: {foreign} names are not of this cache and stay as they are"));
        }
        let index = Index::new(files, most_bytes);
        let queue = Arc::new(Queue::new(folder, index, log));
        let (work, path) = (Arc::clone(&queue), queue.folder().path().to_path_buf());
        let thread = thread::Builder::new().name("tern-disk".into()).spawn(move || work.work());
        let thread = thread.map_err(|e| DiskError::Io(path, e))?;
        Ok(DiskCache(Arc::new(Owner { queue, thread: Some(thread) })))
    }

    /// What the folder holds now.
    pub fn usage(&self) -> DiskUse {
        self.0.queue.index().usage()
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.0.queue
    }

    pub(crate) fn weak_queue(&self) -> Weak<Queue> {
        Arc::downgrade(&self.0.queue)
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiskCache").field(&self.0.queue.folder().path()).finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.queue.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it ends after the file in hand
        }
    }
}
