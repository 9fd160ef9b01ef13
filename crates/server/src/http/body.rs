//! Request bodies: limits on the size and duration of each, and on the bytes of all.

use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::StatusCode;
use http_body::Body as _;
use tokio::time::timeout;

use crate::Config;
use crate::http::error::{ApiError, Result};

/// Bytes of memory that all bodies take.
#[derive(Default)]
pub(crate) struct HeldBytes(AtomicUsize);

/// A body, whose memory is counted in [`HeldBytes`] until it is dropped.
pub(crate) struct HeldBody {
    bytes: Vec<u8>,
    held: Arc<HeldBytes>,
}

impl HeldBody {
    /// Appends `data` and returns true, unless all bodies together would take more than `limit`
    /// bytes. The memory grows with what has arrived, up to `size` bytes: what a client declares and
    /// does not send takes none.
    fn extend(&mut self, data: &[u8], size: usize, limit: usize) -> bool {
        let (len, capacity) = (self.bytes.len().saturating_add(data.len()), self.bytes.capacity());
        if len > capacity {
            let wanted = capacity.saturating_mul(2).min(size).max(len);
            let more = |held: usize| held.checked_add(wanted - capacity).filter(|held| *held <= limit);
            if self.held.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
                return false;
            }
            // the machine may have less memory than the limit
            let taken = self.bytes.try_reserve_exact(wanted - self.bytes.len());
            self.held.0.fetch_add(self.bytes.capacity() - capacity, Ordering::Relaxed);
            self.held.0.fetch_sub(wanted - capacity, Ordering::Relaxed);
            if taken.is_err() {
                return false;
            }
        }
        self.bytes.extend_from_slice(data);
        true
    }

    fn clear(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.held.0.fetch_sub(bytes.capacity(), Ordering::Relaxed);
    }
}

impl Deref for HeldBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Bytes that are read of a request that is refused: a client that is still sending does not read the
/// response.
pub(crate) fn max_discarded(config: &Config) -> usize {
    config.max_body.saturating_mul(4)
}

/// Reads a body of at most [`Config::max_body`] bytes.
pub(crate) async fn read(mut body: Body, config: &Config, held: &Arc<HeldBytes>) -> Result<HeldBody> {
    let (limit, within) = (config.max_body, config.read_timeout);
    let too_large = || {
        let message = format!("the request body exceeds the limit of {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("body_too_large")
    };
    let full = || {
        let message = format!(
            "all request bodies together exceed the limit of {} bytes: retry later",
            config.max_bodies
        );
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("bodies_full").retry(1)
    };
    let max_discarded = max_discarded(config);
    let size = body.size_hint();
    if size.lower() > max_discarded as u64 {
        return Err(too_large());
    }
    let reading = async {
        let size = size.exact().map_or(limit, |size| limit.min(size as usize));
        let mut kept = HeldBody { bytes: vec![], held: Arc::clone(held) };
        let (mut seen, mut refusal) = (0_usize, None);
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let broken = |error| format!("the request body could not be read: {error}");
            let frame = frame.map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, broken(error)))?;
            let Ok(data) = frame.into_data() else { continue };
            seen = seen.saturating_add(data.len());
            if refusal.is_none() {
                refusal = match seen > limit {
                    true => Some(too_large()),
                    false => (!kept.extend(&data, size, config.max_bodies.max(limit))).then(full),
                };
            }
            if refusal.is_some() {
                kept.clear();
            }
            if seen > max_discarded {
                break;
            }
        }
        refusal.map_or(Ok(kept), Err)
    };
    let late = || {
        let message = format!("the request body did not arrive within {} s", within.as_secs_f64());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    };
    timeout(within, reading).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_of_the_limit_is_kept_and_one_byte_more_is_refused() {
        let config = Config { max_body: 10, ..Config::default() };
        let held = Arc::<HeldBytes>::default();
        let read = async |len: usize| read(Body::from(vec![7; len]), &config, &held).await;
        assert_eq!(read(10).await.unwrap().len(), 10);
        for len in [11, 40, 41, 1000] {
            assert_eq!(read(len).await.err().unwrap().status, 413, "{len}");
        }
        assert_eq!(held.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn bodies_share_a_limit() {
        let config = Config { max_body: 10, max_bodies: 25, ..Config::default() };
        let held = Arc::<HeldBytes>::default();
        let read = async |len: usize| read(Body::from(vec![7; len]), &config, &held).await;
        let first = (read(10).await.unwrap(), read(10).await.unwrap());
        let error = read(6).await.err().unwrap();
        assert_eq!((error.status.as_u16(), error.retry_after), (503, Some(1)));
        let _last = read(5).await.unwrap();
        drop(first);
        assert_eq!(held.0.load(Ordering::Relaxed), 5);
        assert!(read(10).await.is_ok());
    }
}
