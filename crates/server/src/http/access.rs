//! One log line per request, written when the last byte is sent or the client has disconnected.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Body as _, Frame, SizeHint};
use tracing::field::Empty;
use tracing::{Instrument, Level, Span};

use crate::http::auth::Key;
use crate::http::error::ApiError;
use crate::http::request_log::{RequestLog, Sender};
use crate::ids;
use crate::state::App;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Adds an id, a span and a log to the request, turns a panic into a 500 response, and logs the end.
pub(crate) async fn layer(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    // only this process can set the extension
    let within = request.extensions().get::<Sender>().copied();
    let log =
        RequestLog::new(within.unwrap_or_else(|| Sender { key: Key::of(request.headers()), batch: false }));
    request.extensions_mut().insert(log.clone());
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let head = request.method() == Method::HEAD;
    let span = tracing::info_span!(
        "request", %method, %path, %id,
        status = Empty, prompt_tokens = Empty, generated_tokens = Empty, finish = Empty,
    );
    // from here on a client that disconnects drops the line, which logs it
    let mut line = Line { app, log, span: span.clone(), method, path, id, status: None, complete: false };
    let mut response = catch_panic(next.run(request).instrument(span)).await;
    line.status = Some(response.status().as_u16());
    // a body that will not be read counts as sent
    line.complete = head || response.body().is_end_stream();
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        line.log.fields().error = Some(error.message);
    }
    if let Ok(id) = HeaderValue::from_str(&line.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response.map(|body| Body::new(Logged { body, line }))
}

/// The client's id if it is valid, otherwise a new one.
fn request_id(request: &Request) -> String {
    let valid = |id: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        !id.is_empty() && id.len() <= 128 && id.chars().all(allowed)
    };
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(valid);
    given.map_or_else(|| ids::id("req-"), str::to_owned)
}

/// Turns a panic of a handler into a 500 response.
async fn catch_panic(future: impl Future<Output = Response>) -> Response {
    let mut future = pin!(future);
    let poll = |cx: &mut Context<'_>| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll,
        Err(_) => Poll::Ready(ApiError::internal().into_response()),
    };
    std::future::poll_fn(poll).await
}

/// Routes that monitoring polls every few seconds.
pub(crate) const MONITORING: [&str; 3] = ["/health", "/ready", "/metrics"];

/// A log line that is written when it is dropped.
struct Line {
    app: Arc<App>,
    log: RequestLog,
    /// Lives as long as the response.
    span: Span,
    method: String,
    path: String,
    id: String,
    status: Option<u16>,
    /// The response was sent completely.
    complete: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        let status = self.status.unwrap_or(499); // nginx's status for a client that closed the request
        self.app.metrics.response(status);
        let fields = self.log.fields().clone();
        let total = self.log.start.elapsed();
        let decode_s = total.saturating_sub(fields.first_token.unwrap_or_default()).as_secs_f64();
        let speed = match fields.generated_tokens {
            0 | 1 => 0.0,
            tokens => (tokens - 1) as f64 / decode_s.max(1e-9),
        };
        let finish = if self.complete { fields.finish.unwrap_or("-") } else { "cancelled" };
        self.span.record("status", status);
        self.span.record("prompt_tokens", fields.prompt_tokens);
        self.span.record("generated_tokens", fields.generated_tokens);
        self.span.record("finish", finish);
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "tern::access",
                    parent: None, // the line repeats the span's fields
                    $level,
                    method = %self.method,
                    path = %self.path,
                    status,
                    id = %self.id,
                    prompt_tokens = fields.prompt_tokens,
                    cached_tokens = fields.cached_tokens,
                    generated_tokens = fields.generated_tokens,
                    ttft_ms = fields.first_token.map_or(0, |time| time.as_millis() as u64),
                    tokens_per_s = (speed * 10.0).round() / 10.0,
                    finish,
                    total_ms = total.as_millis() as u64,
                    error = fields.error.as_deref().unwrap_or(""),
                )
            };
        }
        // successful polls, and the files of the page, would fill the log
        if status < 400 && (MONITORING.contains(&self.path.as_str()) || self.path.starts_with("/page/")) {
            line!(Level::DEBUG);
        } else {
            line!(Level::INFO);
        }
    }
}

/// A body that holds the log line until it is sent.
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
            self.line.complete = true;
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
    async fn a_panic_is_a_500_response() {
        let response = catch_panic(async { panic!("on purpose") }).await;
        assert_eq!(response.status(), 500);
        let app = App::new(crate::Config::default(), crate::models::registry::Registry::one());
        let error =
            app.work(1, || -> crate::http::error::Result<()> { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(error.status, 500);
    }
}
