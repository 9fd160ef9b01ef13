//! Files that have their names only when they are complete, also after a power failure.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::HubError;

/// Gives the file `from` the name `to` in a folder that exists. Its bytes are on the disk before the name is,
/// and the name is on the disk when this returns.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<(), HubError> {
    File::open(from).and_then(|file| file.sync_all()).map_err(HubError::io(from))?;
    fs::rename(from, to).map_err(HubError::io(to))?;
    let folder = to.parent().unwrap_or(Path::new("/"));
    sync_folder(folder).map_err(HubError::io(folder))
}

/// Gives the file `path` this text: readers see the text before it or all of the new one. `partial` is
/// written meanwhile, by one caller at a time.
pub(crate) fn replace(path: &Path, partial: &Path, text: &str) -> Result<(), HubError> {
    File::create(partial)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(HubError::io(partial))?;
    publish(partial, path)
}

/// Writes the entries of a folder to its disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // file systems that do not have it
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("main"), "old").unwrap();
        fs::hard_link(path("main"), path("reader")).unwrap(); // as if a reader had it open
        fs::write(path("partial"), "left by a killed process").unwrap();
        replace(&path("main"), &path("partial"), "new").unwrap();
        let text = |name: &str| fs::read_to_string(path(name)).unwrap();
        assert_eq!((text("main").as_str(), text("reader").as_str()), ("new", "old"));
        assert!(!path("partial").exists());
        let missing = publish(&path("none"), &path("main")).unwrap_err().to_string();
        assert!(missing.contains("none") && text("main") == "new", "{missing}");
    }
}
