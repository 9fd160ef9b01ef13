//! The folder whose images requests may name by `file://`.

use std::io::Read;
use std::path::{Path, PathBuf};

use tern_server::ImageUrlError;

/// A folder, by its path without links.
#[derive(Debug)]
pub(super) struct ImageFolder(PathBuf);

impl ImageFolder {
    pub(super) fn open(path: &Path) -> Result<ImageFolder, String> {
        let path = path.canonicalize().map_err(|error| error.to_string())?;
        if path.is_dir() { Ok(ImageFolder(path)) } else { Err("want a folder".into()) }
    }

    /// A regular file in the folder or below it: `file:///PATH` with its whole path, or `file://PATH` from
    /// the folder on. What is outside and what is missing have the same error.
    pub(super) fn read(&self, url: &str, max_bytes: usize) -> Result<Vec<u8>, ImageUrlError> {
        let missing = || ImageUrlError::Refused("the folder of images has no such file".into());
        let path = url.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("file://")).map(|_| &url[7..]);
        let path = path.and_then(decoded).ok_or_else(missing)?;
        let path = self.0.join(path).canonicalize().map_err(|_| missing())?;
        if !path.starts_with(&self.0) {
            return Err(missing());
        }
        let file = open(&path).map_err(|_| missing())?;
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(missing());
        }
        let mut bytes = vec![];
        file.take(max_bytes as u64 + 1).read_to_end(&mut bytes).map_err(|_| missing())?;
        if bytes.len() > max_bytes {
            let why = format!(
                "the images of the request are larger than --max-body allows: {max_bytes} bytes are left"
            );
            return Err(ImageUrlError::TooLarge(why));
        }
        Ok(bytes)
    }
}

/// Opens a file that is no link any more, without waiting for the writer of a FIFO.
#[cfg(unix)]
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::File::open(path)
}

/// A path with its `%20` replaced; none if that is no text.
fn decoded(path: &str) -> Option<String> {
    let (mut bytes, mut rest) = (vec![], path.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    let path = String::from_utf8(bytes).ok()?;
    (!path.contains('\0')).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_the_folder_are_read() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("below")).unwrap();
        std::fs::write(at("below/a b.png"), "inside").unwrap();
        std::fs::write(outside.path().join("secret.png"), "outside").unwrap();
        let images = ImageFolder::open(folder.path()).unwrap();
        let read = |url: &str| images.read(url, 6);
        let whole = format!("file://{}", at("below/a b.png").display());
        for url in ["file://below/a%20b.png", "FILE://below/a b.png", "file://below/../below/a b.png", &whole]
        {
            assert_eq!(read(url).as_deref(), Ok(&b"inside"[..]), "{url}");
        }
        assert!(matches!(images.read(&whole, 5), Err(ImageUrlError::TooLarge(_))));
        let secret = outside.path().join("secret.png");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&secret, at("link.png")).unwrap();
            std::os::unix::fs::symlink(outside.path(), at("folder")).unwrap();
            let fifo = std::ffi::CString::new(at("fifo").to_str().unwrap()).unwrap();
            // SAFETY: the path is a string that ends with zero
            assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        }
        let climbing =
            format!("file://../{}/secret.png", outside.path().file_name().unwrap().to_str().unwrap());
        let secret = format!("file://{}", secret.display());
        for url in [
            &*secret,
            &climbing,
            "file://link.png",
            "file://folder/secret.png",
            "file://fifo",
            "file://below",
            "file://missing.png",
            "file://",
            "file:below/a",
            "file://below/a%2",
            "file://below/a%zz",
            "file://a%00b",
            "file:///etc/passwd",
            "file:///dev/zero",
            "file://%2e%2e/secret.png",
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(
                error,
                ImageUrlError::Refused("the folder of images has no such file".into()),
                "{url}"
            );
        }
    }
}
