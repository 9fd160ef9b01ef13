//! The folder of the prefix cache on disk: opened by the first model that is loaded with it, and shared.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tern_engine::{DiskCache, DiskError, DiskLog};
use tern_graph::Backend;

use crate::{Error, Progress};

/// A folder for prefixes that leave memory: they come back from there, also after a restart. Clones share
/// it, so that several models of a process use one folder. One process at a time uses it; others run without.
///
/// ```
/// use tern::{CacheFolder, LoadOptions};
/// # let folder = std::env::temp_dir().join(format!("tern-example-{}", std::process::id()));
/// let options = LoadOptions { cache_folder: Some(CacheFolder::new(&folder, 1 << 30)), ..LoadOptions::default() };
/// # let options = LoadOptions { device: tern::Device::Cpu, ..options };
/// let model = tern::Model::load_with("stories", &options)?;
/// model.generate("Once upon a time")?;
/// drop(model); // what is cached is written now
/// assert!(folder.exists());
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CacheFolder(Arc<Inner>);

struct Inner {
    path: PathBuf,
    most_bytes: u64,
    log: DiskLog,
    opened: Mutex<Option<DiskCache>>,
}

impl CacheFolder {
    /// Bytes of all files, if nothing else is chosen: 8 GiB.
    pub const DEFAULT_BYTES: u64 = 8 << 30;

    /// This folder, which is made if it is missing, with files of at most `most_bytes` together.
    pub fn new(path: impl Into<PathBuf>, most_bytes: u64) -> CacheFolder {
        CacheFolder::logging(path, most_bytes, Arc::new(|_: &str| ()))
    }

    /// The same with a place for lines about files that cannot be used and about a disk that is full.
    pub fn logging(path: impl Into<PathBuf>, most_bytes: u64, log: DiskLog) -> CacheFolder {
        CacheFolder(Arc::new(Inner { path: path.into(), most_bytes, log, opened: Mutex::default() }))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Opens it for a model on a device. If another process uses it, the model runs without, with a warning.
    pub(crate) fn open(
        &self,
        backend: &dyn Backend,
        progress: &dyn Progress,
    ) -> Result<Option<DiskCache>, Error> {
        if backend.cache_format().is_none() || backend.runs_ahead() {
            return Err(Error::CacheFolderDevice(backend.info().name));
        }
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cache) = &*opened {
            return Ok(Some(cache.clone()));
        }
        match DiskCache::open(&self.0.path, self.0.most_bytes, Arc::clone(&self.0.log)) {
            Ok(cache) => Ok(Some(opened.insert(cache).clone())),
            Err(why @ DiskError::InUse(_)) => {
                progress.warn(&format!("{why}; prefixes are cached in memory only"));
                Ok(None)
            }
            Err(why) => Err(Error::CacheFolder(why)),
        }
    }
}

impl std::fmt::Debug for CacheFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { path, most_bytes, .. } = &*self.0;
        f.debug_struct("CacheFolder").field("path", path).field("most_bytes", most_bytes).finish()
    }
}
