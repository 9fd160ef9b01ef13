//! Files that are visible only when they are complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::FormatError;

/// Writes a file in a folder beside its final name, and moves it there if both closures succeed: `write` fills it, `check` looks at
/// what is there. Nothing is left of a file that failed.
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
    all.pop().ok_or_else(|| FormatError::Config(format!("{}: nothing was written", path.display())))
}

/// The same for several files, which are checked together: `write` fills file `i`, `check` gets what it returned for all and the
/// path of the first. The folder is named after `name`.
pub(crate) fn write_whole_files<T>(
    name: &Path,
    paths: &[PathBuf],
    mut write: impl FnMut(usize, &mut BufWriter<File>) -> Result<T, FormatError>,
    check: impl FnOnce(&[T], &Path) -> Result<(), FormatError>,
) -> Result<Vec<T>, FormatError> {
    let failed = |e: io::Error| FormatError::Config(format!("{}: {e}", name.display()));
    let folder = part_of(name);
    let staged: Vec<PathBuf> =
        paths.iter().map(|path| folder.join(path.file_name().unwrap_or_default())).collect();
    let finish = || {
        let _ = fs::remove_dir_all(&folder); // of an earlier run that was killed
        fs::create_dir(&folder).map_err(failed)?;
        let mut written = vec![];
        for (i, path) in staged.iter().enumerate() {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
            written.push(write(i, &mut file)?);
            file.flush().map_err(failed)?;
        }
        if let Some(first) = staged.first() {
            check(&written, first)?;
        }
        staged.iter().zip(paths).try_for_each(|(from, to)| fs::rename(from, to)).map_err(failed)?;
        Ok(written)
    };
    let finished = finish();
    let _ = fs::remove_dir_all(&folder);
    finished
}

/// The folder of files while they are written.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".part");
    path.with_file_name(name)
}
