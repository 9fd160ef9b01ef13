//! A folder beside an output, in which it is written until it is complete.
//!
//! Its name has a random part and it is created exclusively, so that no other folder is used or removed, and
//! runs with the same output do not share one. It is locked while its process lives: a folder that can be
//! locked was left by a process that was killed.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Before the random part of a name.
const MARK: &str = ".tern-";
/// After it.
const END: &str = ".part";
/// Characters of the output's name that are repeated: file systems limit names to 255 bytes.
const NAME_CHARS: usize = 50;

/// A locked folder, which is removed with everything in it.
pub(crate) struct Staging {
    path: PathBuf,
    /// The lock ends with the file.
    _lock: File,
}

impl Staging {
    /// Creates the folder, and removes those that killed processes left for the same output.
    pub(crate) fn beside(output: &Path) -> io::Result<Staging> {
        let name = output.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
        let parent = parent_of(output);
        let prefix: String = name.to_string_lossy().chars().take(NAME_CHARS).collect();
        let prefix = format!(".{prefix}{MARK}");
        remove_abandoned(&parent, &prefix);
        loop {
            let path = parent.join(format!("{prefix}{:016x}{END}", getrandom::u64()?));
            match fs::create_dir(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            }
            if let Some(lock) = locked(&path) {
                return Ok(Staging { path, _lock: lock });
            }
            // another process saw the folder before its lock, and removes it as abandoned
        }
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves something in the folder to its final name.
    pub(crate) fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)?;
        sync_folder(&parent_of(to))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // what remains is removed by the next run
    }
}

/// Writes the entries of a folder to its disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // file systems that do not have it
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.into(),
        _ => ".".into(),
    }
}

/// The lock of a new folder; `None` if another process has removed the folder or is about to.
fn locked(folder: &Path) -> Option<File> {
    let lock = File::open(folder).ok()?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => None,
        // without locks, as on some network file systems, no folder is ever removed as abandoned
        Ok(()) | Err(TryLockError::Error(_)) => folder.exists().then_some(lock),
    }
}

/// Removes the folders with this prefix whose processes have ended.
fn remove_abandoned(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !is_ours(&entry.file_name(), prefix) || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        // the lock is held while the folder is removed, for a process that has just created it
        if let Ok(lock) = File::open(&path)
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Whether a name is the prefix, a random number and the ending.
fn is_ours(name: &OsStr, prefix: &str) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(END));
    number.is_some_and(|n| n.len() == 16 && n.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn folders_of_living_writers_and_of_users_stay() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.gguf");
        let users = ["out.gguf.part", ".out.gguf.tern-0.part", ".out.gguf.tern-0123456789abcdeF.part"];
        for name in users {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let file = ".out.gguf.tern-0123456789abcdef.part";
        fs::write(folder.path().join(file), "a file").unwrap();
        let [one, two] = [0, 1].map(|_| Staging::beside(&out).unwrap());
        assert_ne!(one.path(), two.path());
        assert!(one.path().is_dir() && two.path().is_dir());
        assert_eq!(names(folder.path()).len(), users.len() + 3);
        drop((one, two));
        assert_eq!(names(folder.path()), [users[1], users[2], file, users[0]]);
    }

    #[test]
    fn a_folder_without_a_process_is_removed_for_its_output_only() {
        let folder = tempfile::tempdir().unwrap();
        let [left, other] = [".out.gguf.tern-00000000000000aa.part", ".out2.gguf.tern-00000000000000aa.part"];
        for name in [left, other] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("out.gguf"), "half of it").unwrap();
        }
        drop(Staging::beside(&folder.path().join("out.gguf")).unwrap());
        assert_eq!(names(folder.path()), [other]);
    }

    #[test]
    fn long_names_are_shortened() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["n".repeat(250), "\u{e9}".repeat(120)] {
            assert!(Staging::beside(&folder.path().join(name)).unwrap().path().is_dir());
        }
        assert!(Staging::beside(Path::new("/")).is_err());
    }
}
