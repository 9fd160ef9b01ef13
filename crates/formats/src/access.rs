//! How a file is loaded into memory: mapped or copied, optionally locked.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use memmap2::{Mmap, MmapMut};

use crate::FormatError;

/// How a file is loaded into memory. The default maps it and lets the system evict pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Reads a copy into memory: slower to open, but later changes to the file have no effect.
    pub copy: bool,
    /// Locks all bytes in memory, so that the system does not evict them.
    pub lock: bool,
    /// When a copy is given up that is not complete.
    pub until: Option<Instant>,
}

/// Bytes of a copy that are read between two checks of the time.
const READ: usize = 16 << 20;

impl Access {
    /// The bytes of the file at `path`.
    pub(crate) fn bytes(self, path: &Path) -> Result<Bytes, FormatError> {
        let io = |e| FormatError::Io(path.into(), e);
        let file = open_regular(path).map_err(io)?;
        let map = match self.copy {
            true => copied(file, path, self.until)?,
            // SAFETY: the map is read-only and private to this process; a fault after another process
            // truncates the file is a documented limitation (see `Checkpoint::open`).
            false => unsafe { Mmap::map(&file) }.map_err(|e| not_mapped(&file, e).at(path))?,
        };
        #[cfg(unix)]
        if self.lock {
            map.lock().map_err(|e| FormatError::NotLocked(map.len() as u64, e).at(path))?;
        }
        Ok(Bytes::from_owner(map))
    }
}

/// The error of a file that cannot be mapped.
fn not_mapped(file: &File, error: io::Error) -> FormatError {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
    // "unlimited" is none
    let limit = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    FormatError::NotMapped(file.metadata().map_or(0, |metadata| metadata.len()), error, limit)
}

/// Opens a file to read it. Whatever is not a regular file is refused and never waited for: opening a FIFO
/// blocks until another process writes to it, and a device may have no end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let checked = |kind: fs::FileType| match kind.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    checked(fs::metadata(path)?.file_type())?;
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    checked(file.metadata()?.file_type())?; // it may have been replaced since
    Ok(file)
}

/// A copy of the whole file, in anonymous mapped memory: a failed allocation is an error,
/// not an abort as with `Vec`.
fn copied(mut file: File, path: &Path, until: Option<Instant>) -> Result<Mmap, FormatError> {
    let io = |e| FormatError::Io(path.into(), e);
    let bytes = file.metadata().map_err(io)?.len();
    let no_memory = |e| FormatError::NoMemory(bytes, e).at(path);
    let len = usize::try_from(bytes).map_err(|e| no_memory(io::Error::other(e)))?;
    let mut memory = MmapMut::map_anon(len).map_err(no_memory)?;
    for (part, done) in memory.chunks_mut(READ).zip((0_u64..).step_by(READ)) {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(FormatError::Late(done, bytes).at(path));
        }
        file.read_exact(part).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => FormatError::Shrank(bytes).at(path),
            _ => io(e),
        })?;
    }
    memory.make_read_only().map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_outlives_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let content: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        for lock in [false, true] {
            let access = Access { copy: true, lock, ..Access::default() };
            std::fs::write(&path, &content).unwrap();
            let bytes = access.bytes(&path).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
            assert_eq!(bytes, content, "{access:?}");
        }
        assert!(Access { copy: true, ..Access::default() }.bytes(&path).unwrap().is_empty());
        assert!(matches!(Access::default().bytes(&folder.path().join("none")), Err(FormatError::Io(..))));
    }

    #[test]
    fn a_copy_ends_at_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 3 * READ / 2]).unwrap();
        let until = |until: Instant| Access { copy: true, until: Some(until), ..Access::default() };
        let error = until(Instant::now()).bytes(&path).unwrap_err().to_string();
        let message = "reading took too long and was given up after 0 of 25165824 bytes";
        assert_eq!(error, format!("{}: {message}", path.display()));
        let later = Instant::now() + std::time::Duration::from_secs(600);
        assert_eq!(until(later).bytes(&path).unwrap().len(), 3 * READ / 2);
    }

    /// Opening a FIFO waits for a writer: the test would never end.
    #[cfg(unix)]
    #[test]
    fn what_is_not_a_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("pipe.gguf");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let link = folder.path().join("link.gguf");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        for path in [fifo.as_path(), link.as_path(), folder.path(), Path::new("/dev/zero")] {
            for copy in [false, true] {
                let error = Access { copy, ..Access::default() }.bytes(path).unwrap_err().to_string();
                assert_eq!(error, format!("{}: not a regular file", path.display()));
            }
        }
    }
}
