//! SHA-256 of files, as lower-case hex.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::HubError;

/// Bytes per read.
pub(crate) const CHUNK: usize = 1 << 20;

/// The SHA-256 of all bytes of `reader`; each chunk is also passed to `also`.
pub(crate) fn of(mut reader: impl Read, mut also: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                hash.update(&buffer[..n]);
                also(&buffer[..n])?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(hex(&hash.finalize()))
}

/// The hexadecimal digits of a hash.
pub(crate) fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks the size and the SHA-256 of the file at `path`; errors call it `name`.
pub(crate) fn check(path: &Path, name: &str, bytes: u64, sha256: &str) -> Result<(), HubError> {
    let file = File::open(path).map_err(HubError::io(path))?;
    let got = file.metadata().map_err(HubError::io(path))?.len();
    if got != bytes {
        return Err(HubError::Size { file: name.to_string(), want: bytes, got });
    }
    let got = of(file, |_| Ok(())).map_err(HubError::io(path))?;
    if !got.eq_ignore_ascii_case(sha256) {
        return Err(HubError::Hash { file: name.to_string(), want: sha256.to_string(), got });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn known_hashes() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let mut copy = Vec::new();
        let got = of(&b"abc"[..], |chunk| copy.write_all(chunk)).unwrap();
        assert_eq!((got.as_str(), copy.as_slice()), (abc, &b"abc"[..]));
    }

    #[test]
    fn errors_have_both_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "abc").unwrap();
        let want = "0".repeat(64);
        let error = check(&path, "x.gguf", 3, &want).unwrap_err().to_string();
        let got = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(error, format!("x.gguf: want SHA-256 {want}, got {got}"));
        let error = check(&path, "x.gguf", 4, &want).unwrap_err().to_string();
        assert_eq!(error, "x.gguf: want 4 bytes, got 3");
    }
}
