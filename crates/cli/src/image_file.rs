//! Files of images that the command line names.

use std::io::Read;
use std::path::Path;

/// Bytes of a file at most.
const MOST: u64 = 64 << 20;

/// Endings of the names of images.
const ENDINGS: [&str; 6] = ["bmp", "gif", "jpeg", "jpg", "png", "webp"];

/// The bytes of a regular file; an error is one sentence.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    // a FIFO would wait for a writer
    let kind = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !kind.is_file() {
        return Err("want a file".into());
    }
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let mut bytes = vec![];
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MOST {
        return Err(format!("want at most {} MiB", MOST >> 20));
    }
    Ok(bytes)
}

/// Whether a path is that of a file that is named as an image.
pub(crate) fn is_named_as_one(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&&*ending)) && path.is_file()
}
