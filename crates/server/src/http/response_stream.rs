//! A streamed response: a future that sends frames, and the response body that drives it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::Frame;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, Sleep, sleep};
use tracing::Instrument;

use crate::http::frames::{Frames, Framing};

/// Frames that may be queued for a client.
const QUEUE: usize = 16;

/// Sends frames to one client.
pub(crate) struct FrameSender(Sender<Bytes>);

impl FrameSender {
    pub(crate) async fn send(&self, frames: Frames) {
        if !frames.is_empty() {
            // the receiver is in the body that polls this future: both are dropped together
            let _ = self.0.send(frames.into_bytes()).await;
        }
    }
}

/// How a response is streamed.
pub(crate) struct StreamFormat {
    pub(crate) framing: Framing,
    /// Interval of keep-alive comments in an idle stream.
    pub(crate) keep_alive: Duration,
    /// What is sent if the future panics.
    pub(crate) on_panic: Frames,
}

/// A response whose body runs the future that `make` returns. Dropping the body drops the future.
pub(crate) fn response<F>(format: StreamFormat, make: impl FnOnce(FrameSender) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let StreamFormat { framing, keep_alive, on_panic } = format;
    let (sender, frames) = channel(QUEUE);
    let future = make(FrameSender(sender)).in_current_span(); // the request's span
    let body = StreamBody {
        future: Some(Box::pin(future)),
        frames,
        keep_alive,
        idle: Box::pin(sleep(keep_alive)),
        framing,
        on_panic: on_panic.into_bytes(),
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(framing.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct StreamBody {
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    frames: Receiver<Bytes>,
    keep_alive: Duration,
    idle: Pin<Box<Sleep>>,
    framing: Framing,
    on_panic: Bytes,
}

impl StreamBody {
    /// Polls the future; a panic ends it with an error.
    fn advance(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        let future = self.future.as_mut()?;
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.future = None;
        }
        polled.is_err().then(|| std::mem::take(&mut self.on_panic))
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let failed = this.advance(cx);
        // everything that is queued is sent as one frame of HTTP
        let mut out = Vec::new();
        while let Ok(line) = this.frames.try_recv() {
            out.extend_from_slice(&line);
        }
        out.extend(failed.into_iter().flatten());
        if out.is_empty() && this.future.is_none() {
            return Poll::Ready(None);
        }
        if !out.is_empty() {
            this.idle.as_mut().reset(Instant::now() + this.keep_alive);
            return Poll::Ready(Some(Ok(Frame::data(out.into()))));
        }
        let Some(comment) = this.framing.keep_alive() else { return Poll::Pending };
        if this.idle.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        this.idle.as_mut().reset(Instant::now() + this.keep_alive);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(comment)))))
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

    fn format(framing: Framing) -> StreamFormat {
        let mut on_panic = Frames::default();
        on_panic.line(&"panicked");
        StreamFormat { framing, keep_alive: Duration::from_secs(10), on_panic }
    }

    fn one(value: i32) -> Frames {
        let mut frames = Frames::default();
        frames.data(&value);
        frames
    }

    #[tokio::test(start_paused = true)]
    async fn more_frames_than_the_queue_holds_arrive_in_order_with_keep_alives() {
        for (framing, comment) in [(Framing::Events, ": keep-alive\n\n"), (Framing::Lines, "")] {
            let response = response(format(framing), async move |sender: FrameSender| {
                for i in 0..100 {
                    sender.send(one(i)).await;
                }
                sleep(Duration::from_secs(15)).await;
                let mut last = Frames::default();
                last.done();
                sender.send(last).await;
            });
            let want: String = (0..100).map(|i| format!("data: {i}\n\n")).collect();
            assert_eq!(text(response).await, format!("{want}{comment}data: [DONE]\n\n"));
        }
    }

    #[tokio::test]
    async fn a_panic_sends_an_error_and_ends_the_stream() {
        let response = response(format(Framing::Lines), async |sender: FrameSender| {
            sender.send(one(1)).await;
            panic!("on purpose");
        });
        assert_eq!(text(response).await, "data: 1\n\n\"panicked\"\n");
    }
}
