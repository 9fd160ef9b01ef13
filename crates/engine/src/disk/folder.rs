//! The folder: private, used by one process at a time, and every name in it opened as a regular file or not
//! at all.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::DiskError;
use super::file::{self, Item};
use super::key::{FileId, Key};

/// The ending of files that are being written.
const UNFINISHED: &str = "tmp";

/// A folder with its lock.
pub(super) struct Folder {
    path: PathBuf,
    /// Held as long as the folder is open.
    _lock: File,
}

/// A file that was found.
pub(super) struct Found {
    pub(super) id: FileId,
    pub(super) bytes: u64,
    pub(super) used: SystemTime,
}

impl Folder {
    /// Opens a folder, which is made if it is missing.
    pub(super) fn open(path: &Path) -> Result<Folder, DiskError> {
        let io = |e| DiskError::Io(path.to_path_buf(), e);
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path).map_err(io)?;
        let path = path.canonicalize().map_err(io)?; // a link that the user gives is followed, once
        let lock = options(&mut OpenOptions::new()).write(true).create(true).open(path.join("lock"));
        let lock = lock.map_err(|e| DiskError::Io(path.join("lock"), e))?;
        if !is_private(&path, &lock).map_err(io)? {
            return Err(DiskError::NotPrivate(path));
        }
        match lock.try_lock() {
            Ok(()) => Ok(Folder { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(DiskError::InUse(path)),
            Err(TryLockError::Error(e)) => Err(DiskError::Io(path, e)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn of(&self, id: &FileId) -> PathBuf {
        self.path.join(id.name())
    }

    /// The files, and how many names are none. What a process that was killed was writing is removed.
    pub(super) fn scan(&self) -> Result<(Vec<Found>, usize), DiskError> {
        let io = |e| DiskError::Io(self.path.clone(), e);
        let (mut files, mut foreign) = (vec![], 0);
        for entry in fs::read_dir(&self.path).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            // of the name itself, not of what a link leads to
            let found = entry.metadata().ok().filter(|found| found.is_file());
            let unfinished = name.strip_suffix(UNFINISHED).and_then(|name| name.strip_suffix('.'));
            match (found, FileId::parse(name), unfinished.and_then(FileId::parse)) {
                (Some(found), Some(id), _) => {
                    let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    files.push(Found { id, bytes: found.len(), used });
                }
                (Some(_), None, Some(_)) => drop(fs::remove_file(entry.path())),
                _ => foreign += usize::from(name != "lock"),
            }
        }
        Ok((files, foreign))
    }

    /// Writes a file under a temporary name and renames it, so that a name has a whole file or none.
    pub(super) fn write(&self, model: &Key, item: &Item, payload: &[u8]) -> io::Result<()> {
        let path = self.of(&item.id);
        let unfinished = self.path.join(format!("{}.{UNFINISHED}", item.id.name()));
        let new = options(&mut OpenOptions::new()).write(true).create_new(true).open(&unfinished);
        let written = new.and_then(|mut file| {
            file::write(&mut file, model, item, payload)?;
            file.set_modified(stamp(item))?;
            fs::rename(&unfinished, path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// The payload of a file.
    pub(super) fn read(&self, model: &Key, item: &Item, payload: usize) -> io::Result<Vec<u8>> {
        let mut file = options(&mut OpenOptions::new()).read(true).open(self.of(&item.id))?;
        let bytes = file::read(&mut file, model, item, payload)?;
        let _ = file.set_modified(stamp(item)); // the order after a restart
        Ok(bytes)
    }

    pub(super) fn remove(&self, id: &FileId) {
        let _ = fs::remove_file(self.of(id));
    }
}

/// When a file was used: the end of a prefix before its beginning, so that it is removed first.
fn stamp(item: &Item) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(Duration::from_millis(item.at as u64)).unwrap_or(now)
}

/// Options that follow no link, wait for no other end of a FIFO, and make private files.
fn options(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).mode(0o600);
    }
    options
}

/// Whether no other user may change what is in a folder: it and the lock belong to the same user.
#[cfg(unix)]
fn is_private(path: &Path, lock: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (folder, lock) = (fs::metadata(path)?, lock.metadata()?);
    Ok(lock.is_file() && folder.uid() == lock.uid() && folder.mode() & 0o022 == 0)
}

#[cfg(not(unix))]
fn is_private(_path: &Path, lock: &File) -> io::Result<bool> {
    Ok(lock.metadata()?.is_file())
}
