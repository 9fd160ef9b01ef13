//! What identifies the contents of a model without reading all of them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::digest::hex;

/// Bytes of each file that are hashed: its header, whose tensors and sizes differ between models.
const HEAD: u64 = 1 << 20;

/// A SHA-256 in hexadecimal digits: of the file if the hub's cache has it as the name of its blob, else of
/// the sizes of the files and their first MiB each.
pub fn identity(files: &[impl AsRef<Path>]) -> io::Result<String> {
    if let [only] = files
        && let Some(sha256) = blob(only.as_ref())
    {
        return Ok(sha256);
    }
    let mut hash = Sha256::new();
    for file in files {
        let path = file.as_ref();
        // opening a FIFO would wait for a writer
        if !path.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        hash.update(file.metadata()?.len().to_le_bytes());
        let mut head = vec![];
        file.take(HEAD).read_to_end(&mut head)?;
        hash.update(&head);
    }
    Ok(hex(&hash.finalize()))
}

/// The SHA-256 of a model in memory, in hexadecimal digits.
pub fn identity_of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The SHA-256 of a file in the hub's cache: large files are links to blobs that are named by it.
fn blob(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    let name = target.file_name()?.to_str()?;
    let is_blob = target.parent()?.file_name()? == "blobs";
    let is_hash = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
    (is_blob && is_hash).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::sha256;

    #[test]
    fn contents_differ_and_copies_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (one, copy, other) = (file("a", b"one"), file("b", b"one"), file("c", b"two"));
        let digest = identity(&[&one]).unwrap();
        assert!(digest.len() == 64 && digest == identity(&[&copy]).unwrap());
        assert_ne!(digest, identity(&[&other]).unwrap());
        assert_ne!(identity(&[&one, &other]).unwrap(), identity(&[&other, &one]).unwrap());
        assert!(identity(&[folder.path()]).is_err());
        assert_eq!(identity_of_bytes(b"one"), sha256(b"one"));
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink(format!("../../blobs/{}", sha256(b"one")), &link).unwrap();
            assert_eq!(identity(&[link]).unwrap(), sha256(b"one"));
        }
    }
}
