//! Images that a request names by URL: they are read while no worker waits for them, and the request is
//! prepared again with their files.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::http::error::{ApiError, Result};

/// Reads images that requests name by URL.
pub trait ImageUrls: std::fmt::Debug + Send + Sync {
    /// The file at a URL, of at most `max_bytes` bytes. Blocks, at most until `until`.
    fn read(
        &self,
        url: &str,
        max_bytes: usize,
        until: Instant,
    ) -> std::result::Result<Vec<u8>, ImageUrlError>;
}

/// Why an image was not read, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUrlError {
    /// The server may not read it.
    Refused(String),
    /// It could not be read.
    Failed(String),
    /// It is larger than allowed.
    TooLarge(String),
}

/// How long the images of one request may take altogether.
const TIME: Duration = Duration::from_secs(10);
/// Bytes of a URL at most.
const MAX_URL: usize = 8 << 10;

type File = std::result::Result<Arc<[u8]>, ImageUrlError>;

/// The images that one request names. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedImages(Option<Arc<Request>>);

#[derive(Debug)]
struct Request {
    urls: Arc<dyn ImageUrls>,
    max_bytes: usize,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    read: HashMap<String, File>,
    /// In order, each once.
    wanted: Vec<String>,
}

impl NamedImages {
    /// `max_bytes`: of all of them together.
    pub(crate) fn new(urls: Option<&Arc<dyn ImageUrls>>, max_bytes: usize) -> NamedImages {
        NamedImages(
            urls.map(|urls| Arc::new(Request { urls: Arc::clone(urls), max_bytes, files: Mutex::default() })),
        )
    }

    /// The file at a URL. One that is not read yet is empty, and the request is prepared again.
    pub(crate) fn file(&self, url: &str, name: &str) -> Result<Arc<[u8]>> {
        let refused =
            |why: &str| Err(ApiError::bad(name, format!("{name}: {why}")).code("image_url_refused"));
        let Some(request) = &self.0 else {
            return refused(
                "expected a data URI with the image itself, `data:image/png;base64,...`; other URLs are not \
                 fetched",
            );
        };
        if url.len() > MAX_URL {
            return refused(&format!("the URL is longer than {MAX_URL} bytes"));
        }
        let mut files = request.files();
        match files.read.get(url) {
            Some(Ok(file)) => Ok(Arc::clone(file)),
            Some(Err(error)) => {
                let (why, code) = match error {
                    ImageUrlError::Refused(why) => (why, "image_url_refused"),
                    ImageUrlError::Failed(why) => (why, "image_url_fetch_failed"),
                    ImageUrlError::TooLarge(why) => (why, "image_too_large"),
                };
                Err(ApiError::bad(name, format!("{name}: {why}")).code(code))
            }
            None => {
                if !files.wanted.iter().any(|wanted| wanted == url) {
                    files.wanted.push(url.into());
                }
                Ok(Arc::default())
            }
        }
    }

    /// Whether files are not read yet.
    pub(crate) fn has_unread(&self) -> bool {
        self.0.as_ref().is_some_and(|request| !request.files().wanted.is_empty())
    }

    /// Reads what is missing. Blocks.
    pub(crate) fn read(&self, is_cancelled: impl Fn() -> bool) {
        let Some(request) = &self.0 else { return };
        let wanted = std::mem::take(&mut request.files().wanted);
        let (until, mut left) = (Instant::now() + TIME, request.max_bytes);
        for (number, url) in wanted.into_iter().enumerate() {
            let file: File = if is_cancelled() || number >= tern::MAX_IMAGES {
                Err(ImageUrlError::Failed(format!(
                    "the image was not read: want at most {}",
                    tern::MAX_IMAGES
                )))
            } else {
                request.urls.read(&url, left, until).map(Arc::from)
            };
            left -= file.as_ref().map_or(0, |file| file.len().min(left));
            request.files().read.insert(url, file);
        }
    }
}

impl Request {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of as many bytes as their URL says.
    #[derive(Debug)]
    struct Sized;

    impl ImageUrls for Sized {
        fn read(
            &self,
            url: &str,
            max_bytes: usize,
            _: Instant,
        ) -> std::result::Result<Vec<u8>, ImageUrlError> {
            match url.trim_start_matches("http://").parse() {
                Ok(bytes) if bytes <= max_bytes => Ok(vec![7; bytes]),
                Ok(_) => Err(ImageUrlError::TooLarge(format!("more than {max_bytes} bytes"))),
                Err(_) => Err(ImageUrlError::Refused("not allowed".into())),
            }
        }
    }

    #[test]
    fn files_are_read_once_and_share_a_limit() {
        let images = NamedImages::new(Some(&(Arc::new(Sized) as Arc<dyn ImageUrls>)), 10);
        for url in ["http://4", "http://5", "http://4", "http://2", "http://x"] {
            assert!(images.file(url, "u").unwrap().is_empty());
        }
        assert!(images.has_unread());
        images.read(|| false);
        assert!(!images.has_unread());
        assert_eq!(
            (images.file("http://4", "u").unwrap().len(), images.file("http://5", "u").unwrap().len()),
            (4, 5)
        );
        let error = images.file("http://2", "u").unwrap_err();
        assert_eq!((error.message.as_str(), error.code), ("u: more than 1 bytes", Some("image_too_large")));
        assert_eq!(images.file("http://x", "u").unwrap_err().code, Some("image_url_refused"));
        let long = format!("http://{}", "a".repeat(MAX_URL));
        assert!(images.file(&long, "u").is_err() && !images.has_unread());
        let none = NamedImages::default().file("http://4", "u").unwrap_err();
        assert!(none.message.starts_with("u: expected a data URI"), "{}", none.message);
    }

    #[test]
    fn more_images_than_a_request_may_have_are_not_read() {
        let images = NamedImages::new(Some(&(Arc::new(Sized) as Arc<dyn ImageUrls>)), usize::MAX);
        let url = |at: usize| format!("http://{at}");
        (0..70).for_each(|at| drop(images.file(&url(at + 1), "u")));
        images.read(|| false);
        let is_read = |at: &usize| images.file(&url(at + 1), "u").is_ok();
        assert_eq!((0..70).filter(is_read).count(), tern::MAX_IMAGES);
    }
}
