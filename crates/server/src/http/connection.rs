//! One client connection: HTTP/1.1 requests and their limits.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::body;
use crate::http::client_io::{ClientIo, IoLimits, SocketState};
use crate::http::connection_slots::SlotsFull;
use crate::http::error::ApiError;
use crate::state::{App, Stop};

/// Consecutive requests that a client may send without waiting for responses.
const PIPELINED: u64 = 16;
/// Bytes of a request's head, and of a response that the client has not read yet.
const BUFFER: usize = 64 << 10;
/// Lifetime of a connection without a slot.
const HEALTH_ONLY_LIFETIME: Duration = Duration::from_secs(2);
/// Bytes of a refused request that are read on a connection without a slot.
const HEALTH_ONLY_BYTES: usize = 1 << 20;

/// Serves a client until it disconnects, or until its last response when the server drains.
pub(crate) async fn serve(app: Arc<App>, router: Router, stream: TcpStream) {
    let io = ClientIo::new(
        stream,
        IoLimits {
            write_timeout: app.config.write_timeout,
            linger: app.config.read_timeout,
            linger_bytes: body::max_discarded(&app.config),
        },
    );
    let requests = Requests { router, app: Arc::clone(&app), pipeline: Pipeline::new(&io), full: None };
    run(app, io, requests).await;
}

/// Serves a client without a slot: `/health` is answered, anything else refused, and
/// the connection ends soon.
pub(crate) async fn serve_health(app: Arc<App>, router: Router, stream: TcpStream, full: SlotsFull) {
    let limits = IoLimits {
        write_timeout: HEALTH_ONLY_LIFETIME,
        linger: HEALTH_ONLY_LIFETIME,
        linger_bytes: HEALTH_ONLY_BYTES,
    };
    let io = ClientIo::new(stream, limits);
    let requests = Requests { router, app: Arc::clone(&app), pipeline: Pipeline::new(&io), full: Some(full) };
    let _ = timeout(HEALTH_ONLY_LIFETIME, run(app, io, requests)).await;
}

async fn run(app: Arc<App>, io: ClientIo, requests: Requests) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.config.read_timeout).max_buf_size(BUFFER);
    let connection = builder.serve_connection(TokioIo::new(io), requests);
    let mut connection = std::pin::pin!(connection);
    let mut stop = std::pin::pin!(app.stopped(Stop::Draining));
    let mut draining = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection closed early");
                }
                return;
            }
            () = stop.as_mut(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Counts pipelined requests: those that arrived before the response to the previous request.
struct Pipeline {
    socket: Arc<SocketState>,
    /// The number of reads at the last request.
    reads: AtomicU64,
    pipelined: AtomicU64,
}

impl Pipeline {
    fn new(io: &ClientIo) -> Pipeline {
        Pipeline { socket: io.state(), reads: AtomicU64::new(0), pipelined: AtomicU64::new(0) }
    }

    /// Whether the new request exceeds the limit.
    fn is_full(&self) -> bool {
        let reads = self.socket.reads.load(Ordering::Relaxed);
        match self.reads.swap(reads, Ordering::Relaxed) == reads {
            true => self.pipelined.fetch_add(1, Ordering::Relaxed) + 1 >= PIPELINED,
            false => {
                self.pipelined.store(0, Ordering::Relaxed);
                false
            }
        }
    }
}

/// Answers the requests of one connection.
struct Requests {
    router: Router,
    app: Arc<App>,
    pipeline: Pipeline,
    /// Why the connection has no slot.
    full: Option<SlotsFull>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Service<Request<Incoming>> for Requests {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let last = self.pipeline.is_full() || self.full.is_some();
        let has_body = !request.body().is_end_stream();
        let answer: Answer = match &self.full {
            Some(SlotsFull(message)) if request.uri().path() != "/health" => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                self.app.metrics.response(status.as_u16());
                tracing::debug!(%message, "connection refused");
                let error = ApiError::new(status, message).code("too_many_connections").retry(1);
                Box::pin(async { Ok(error.into_response()) })
            }
            _ => Box::pin(TowerToHyperService::new(self.router.clone()).call(request)),
        };
        let socket = Arc::clone(&self.pipeline.socket);
        Box::pin(async move {
            let mut response = answer.await?;
            // requests are refused before their body is read
            let unread = has_body && !response.status().is_success();
            socket.unread_input.store(last || unread, Ordering::Relaxed);
            if last {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}
