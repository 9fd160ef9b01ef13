//! Files that are visible only when they are complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::FormatError;
use crate::staging::{Staging, sync_folder};

/// Writes a file in a folder beside its final name, and moves it there if both closures succeed: `write`
/// fills it, `check` reads the result. Nothing is left of a file that failed, and runs with the same
/// path do not disturb each other: the last one that finishes gives the file its content.
///
/// ```
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("model.gguf");
/// let size = tern_formats::write_whole_file(&path, |file| {
///     std::io::Write::write_all(file, b"GGUF").map_err(tern_formats::FormatError::Write)?;
///     Ok(4)
/// }, |_, _| Ok(()))?;
/// assert_eq!(size, 4);
/// # Ok::<(), tern_formats::FormatError>(())
/// ```
pub fn write_whole_file<T>(
    path: &Path,
    mut write: impl FnMut(&mut BufWriter<File>) -> Result<T, FormatError>,
    check: impl FnOnce(&T, &Path) -> Result<(), FormatError>,
) -> Result<T, FormatError> {
    let one = |all: &[T], path: &Path| all.first().map_or(Ok(()), |written| check(written, path));
    let mut all = write_whole_files(path, &[path.into()], |_, file| write(file), one)?;
    all.pop().ok_or_else(|| FormatError::NothingWritten(path.into()))
}

/// The same for several files, which are checked together: `write` fills file `i`, `check` gets what it
/// returned for all and the path of the first. The folder is named after `name`.
pub(crate) fn write_whole_files<T>(
    name: &Path,
    paths: &[PathBuf],
    mut write: impl FnMut(usize, &mut BufWriter<File>) -> Result<T, FormatError>,
    check: impl FnOnce(&[T], &Path) -> Result<(), FormatError>,
) -> Result<Vec<T>, FormatError> {
    let failed = |e: io::Error| FormatError::Io(name.into(), e);
    paths.iter().try_for_each(|path| check_replaceable(path))?;
    let folder = Staging::beside(name).map_err(failed)?;
    let staged: Vec<PathBuf> =
        paths.iter().map(|path| folder.path().join(path.file_name().unwrap_or_default())).collect();
    let mut written = vec![];
    for (i, path) in staged.iter().enumerate() {
        let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path).map_err(failed)?);
        written.push(write(i, &mut file)?);
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(failed)?;
    }
    if let Some(first) = staged.first() {
        check(&written, first)?;
    }
    sync_folder(folder.path()).map_err(failed)?;
    staged.iter().zip(paths).try_for_each(|(from, to)| folder.publish(from, to)).map_err(failed)?;
    Ok(written)
}

/// A complete file replaces a file, but not a folder or a device.
fn check_replaceable(path: &Path) -> Result<(), FormatError> {
    match fs::metadata(path) {
        Ok(existing) if !existing.is_file() => {
            let kind = if existing.is_dir() { "a folder" } else { "not a regular file" };
            Err(FormatError::NotReplaceable(path.into(), kind))
        }
        _ => Ok(()),
    }
}
