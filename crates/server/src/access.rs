//! One line in the log for every request, written when its last byte is sent or its client is gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Body as _, Frame, SizeHint};
use tracing::field::Empty;
use tracing::{Instrument, Level, Span};

use crate::chance;
use crate::error::{ApiError, ErrorMessage};
use crate::state::App;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a route tells about its request. Clones are the same record.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) start: Instant,
    told: Arc<Mutex<Told>>,
}

/// What is known so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) generated_tokens: usize,
    pub(crate) first_token: Option<Duration>,
    pub(crate) finish: Option<&'static str>,
    pub(crate) error: Option<String>,
}

impl Record {
    pub(crate) fn new() -> Record {
        Record { start: Instant::now(), told: Arc::default() }
    }

    pub(crate) fn tell(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the request an id, a span and a record; turns a panic into its answer; logs the end.
pub(crate) async fn layer(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let record = Record::new();
    request.extensions_mut().insert(record.clone());
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let head = request.method() == Method::HEAD;
    let span = tracing::info_span!(
        "request", %method, %path, %id,
        status = Empty, prompt_tokens = Empty, generated_tokens = Empty, finish = Empty,
    );
    // from here on a client that goes away drops the line, which logs it
    let mut line = Line { app, record, span: span.clone(), method, path, id, status: None, whole: false };
    let mut response = unpanicked(next.run(request).instrument(span)).await;
    line.status = Some(response.status().as_u16());
    // a body that nobody will read is sent already
    line.whole = head || response.body().is_end_stream();
    if let Some(ErrorMessage(message)) = response.extensions_mut().remove() {
        line.record.tell().error = Some(message);
    }
    if let Ok(id) = HeaderValue::from_str(&line.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response.map(|body| Body::new(Logged { body, line }))
}

/// The client's own id where it is one, otherwise a new one.
fn request_id(request: &Request) -> String {
    let sane = |id: &&str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        !id.is_empty() && id.len() <= 128 && id.chars().all(known)
    };
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(sane);
    given.map_or_else(|| chance::id("req-"), str::to_owned)
}

/// A panic of one request is that request's answer.
async fn unpanicked(future: impl Future<Output = Response>) -> Response {
    let mut future = pin!(future);
    let poll = |cx: &mut Context<'_>| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll,
        Err(_) => Poll::Ready(ApiError::internal().into_response()),
    };
    std::future::poll_fn(poll).await
}

/// Routes that are asked all the time.
const WATCHED: [&str; 3] = ["/health", "/ready", "/metrics"];

/// The line in the making, written when it is dropped.
struct Line {
    app: Arc<App>,
    record: Record,
    /// Lives as long as the answer.
    span: Span,
    method: String,
    path: String,
    id: String,
    status: Option<u16>,
    /// The whole answer was sent.
    whole: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        let status = self.status.unwrap_or(499); // nginx's number for a client that did not wait
        self.app.metrics.response(status);
        let told = self.record.tell().clone();
        let total = self.record.start.elapsed();
        let speaking = total.saturating_sub(told.first_token.unwrap_or_default()).as_secs_f64();
        let speed = match told.generated_tokens {
            0 | 1 => 0.0,
            tokens => (tokens - 1) as f64 / speaking.max(1e-9),
        };
        let finish = if self.whole { told.finish.unwrap_or("-") } else { "cancelled" };
        self.span.record("status", status);
        self.span.record("prompt_tokens", told.prompt_tokens);
        self.span.record("generated_tokens", told.generated_tokens);
        self.span.record("finish", finish);
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "tern::access",
                    parent: None, // the line says it all itself
                    $level,
                    method = %self.method,
                    path = %self.path,
                    status,
                    id = %self.id,
                    prompt_tokens = told.prompt_tokens,
                    cached_tokens = told.cached_tokens,
                    generated_tokens = told.generated_tokens,
                    ttft_ms = told.first_token.map_or(0, |time| time.as_millis() as u64),
                    tokens_per_s = (speed * 10.0).round() / 10.0,
                    finish,
                    total_ms = total.as_millis() as u64,
                    error = told.error.as_deref().unwrap_or(""),
                )
            };
        }
        // whoever watches comes every few seconds, and is news only when something is wrong
        if status < 400 && WATCHED.contains(&self.path.as_str()) {
            line!(Level::DEBUG);
        } else {
            line!(Level::INFO);
        }
    }
}

/// A body that keeps the line until it is sent.
struct Logged {
    body: Body,
    line: Line,
}

impl http_body::Body for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.line.whole = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let response = unpanicked(async { panic!("on purpose") }).await;
        assert_eq!(response.status(), 500);
        let app = App::new(crate::Config::default());
        let error = app.work(1, || -> crate::error::Result<()> { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(error.status, 500);
    }
}
