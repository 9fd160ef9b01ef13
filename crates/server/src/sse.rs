//! Server-sent events: a future that sends them, and the response body that drives it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::Frame;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, Sleep, sleep};
use tracing::Instrument;

use crate::error::ApiError;

/// Events that may be queued for a client.
const QUEUE: usize = 16;

/// Sends events to one client.
pub(crate) struct Events(Sender<Bytes>);

impl Events {
    pub(crate) async fn send(&self, event: &impl Serialize) {
        let mut line = b"data: ".to_vec();
        let written = serde_json::to_writer(&mut line, event);
        debug_assert!(written.is_ok(), "events serialize without errors");
        line.extend_from_slice(b"\n\n");
        self.line(line.into()).await;
    }

    pub(crate) async fn error(&self, error: &ApiError) {
        self.send(&error.json()).await;
    }

    /// Ends the stream with `[DONE]`.
    pub(crate) async fn done(&self) {
        self.line(Bytes::from_static(b"data: [DONE]\n\n")).await;
    }

    async fn line(&self, line: Bytes) {
        // the receiver is in the body that polls this future: both are dropped together
        let _ = self.0.send(line).await;
    }
}

/// A response whose body runs the future that `make` returns. Dropping the body drops the future.
pub(crate) fn response<F>(keep_alive: Duration, make: impl FnOnce(Events) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, events) = channel(QUEUE);
    let future = make(Events(sender)).in_current_span(); // the request's span
    let future = Some(Box::pin(future) as Pin<Box<dyn Future<Output = ()> + Send>>);
    let body = EventBody { future, events, keep_alive, idle: Box::pin(sleep(keep_alive)) };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct EventBody {
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    events: Receiver<Bytes>,
    keep_alive: Duration,
    idle: Pin<Box<Sleep>>,
}

impl EventBody {
    /// Polls the future; a panic ends it with an error event.
    fn advance(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        let future = self.future.as_mut()?;
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.future = None;
        }
        polled.is_err().then(|| format!("data: {}\n\n", ApiError::internal().json()).into())
    }
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let failed = this.advance(cx);
        // all queued events are sent as one frame
        let mut out = Vec::new();
        while let Ok(line) = this.events.try_recv() {
            out.extend_from_slice(&line);
        }
        out.extend(failed.into_iter().flatten());
        if out.is_empty() && this.future.is_none() {
            return Poll::Ready(None);
        }
        if !out.is_empty() {
            this.idle.as_mut().reset(Instant::now() + this.keep_alive);
        } else if this.idle.as_mut().poll(cx).is_ready() {
            this.idle.as_mut().reset(Instant::now() + this.keep_alive);
            out.extend_from_slice(b": keep-alive\n\n");
        } else {
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Frame::data(out.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn text(response: Response) -> String {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn more_events_than_the_queue_holds_arrive_in_order_with_keep_alives() {
        let minute = Duration::from_secs(60);
        let response = response(Duration::from_secs(10), async move |events: Events| {
            for i in 0..100 {
                events.send(&i).await;
            }
            sleep(minute / 4).await;
            events.done().await;
        });
        let want: String = (0..100).map(|i| format!("data: {i}\n\n")).collect();
        assert_eq!(text(response).await, want + ": keep-alive\n\ndata: [DONE]\n\n");
    }

    #[tokio::test]
    async fn a_panic_sends_an_error_and_ends_the_stream() {
        let response = response(Duration::from_secs(10), async |events: Events| {
            events.send(&1).await;
            panic!("on purpose");
        });
        let text = text(response).await;
        assert!(text.starts_with("data: 1\n\ndata: {\"error\":"), "{text}");
    }
}
