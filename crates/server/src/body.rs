//! A request's body: no longer and no slower than allowed.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use http_body::Body as _;
use tokio::time::timeout;

use crate::error::{ApiError, Result};

/// The bytes of a body, of which at most `limit` are kept.
pub(crate) async fn read(mut body: Body, limit: usize, within: Duration) -> Result<Bytes> {
    let too_large = || {
        let words = format!("the body is larger than the {limit} bytes it may have");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, words).code("body_too_large")
    };
    // a client that is still sending does not read an answer: what is a little too long is read and dropped
    let patience = limit.saturating_mul(4);
    if body.size_hint().lower() > patience as u64 {
        return Err(too_large());
    }
    let reading = async {
        let (mut bytes, mut seen) = (Vec::new(), 0_usize);
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let broken = |error| format!("the body broke off: {error}");
            let frame = frame.map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, broken(error)))?;
            let Ok(data) = frame.into_data() else { continue };
            seen = seen.saturating_add(data.len());
            match seen {
                _ if seen <= limit => bytes.extend_from_slice(&data),
                _ if seen > patience => break,
                _ => bytes = Vec::new(),
            }
        }
        if seen > limit { Err(too_large()) } else { Ok(bytes.into()) }
    };
    let late = || {
        let words = format!("the body took longer than the {} s it may take", within.as_secs_f64());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, words)
    };
    timeout(within, reading).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_of_the_limit_is_kept_and_one_byte_more_is_refused() {
        let read = async |len: usize| read(Body::from(vec![7; len]), 10, Duration::from_secs(1)).await;
        assert_eq!(read(10).await.unwrap().len(), 10);
        for len in [11, 40, 41, 1000] {
            assert_eq!(read(len).await.unwrap_err().status, 413, "{len}");
        }
    }
}
