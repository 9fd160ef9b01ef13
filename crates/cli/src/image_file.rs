//! Files of images that the command line names.

use std::io::Read;
use std::path::Path;

use crate::error::{CliError, CliResult};

/// Bytes of a file at most.
const MOST: u64 = 64 << 20;

/// The bytes of a regular file.
pub(crate) fn read(path: &Path) -> CliResult<Vec<u8>> {
    let fail = |why: String| CliError::message(format!("--image {}: {why}", path.display()));
    // a FIFO would wait for a writer
    let kind = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
    if !kind.is_file() {
        return Err(fail("want a file".into()));
    }
    let file = std::fs::File::open(path).map_err(|e| fail(e.to_string()))?;
    let mut bytes = vec![];
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
    if bytes.len() as u64 > MOST {
        return Err(fail(format!("want at most {} MiB", MOST >> 20)));
    }
    Ok(bytes)
}
