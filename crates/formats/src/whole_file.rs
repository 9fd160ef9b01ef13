//! Files that are visible only when they are complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::FormatError;

/// Writes a file beside its final name, and renames it if both closures succeed: `write` fills it, `check` looks at what is there.
/// Nothing is left of a file that failed.
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
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, FormatError>,
    check: impl FnOnce(&T, &Path) -> Result<(), FormatError>,
) -> Result<T, FormatError> {
    let failed = |e: io::Error| FormatError::Config(format!("{}: {e}", path.display()));
    let part = part_of(path);
    let finish = || {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&part).map_err(failed)?);
        let written = write(&mut file)?;
        file.flush().map_err(failed)?;
        check(&written, &part)?;
        fs::rename(&part, path).map_err(failed)?;
        Ok(written)
    };
    let finished = finish();
    if finished.is_err() {
        let _ = fs::remove_file(&part);
    }
    finished
}

/// The name of the file while it is written.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".part");
    path.with_file_name(name)
}
