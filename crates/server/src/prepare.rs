//! The work of a request that precedes the engine: its body is read, parsed, rendered and tokenized on blocking
//! threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::http::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use crate::Config;
use crate::access::RequestLog;
use crate::body::read;
use crate::error::{ApiError, Result};
use crate::model::ServedModel;
use crate::state::{App, Stop};

/// Bodies up to this size have separate workers, so that they never wait for larger ones.
const SMALL_BODY: usize = 64 << 10;

/// Limits how many requests are prepared at once, because the work is CPU-bound.
pub(crate) struct Workers {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Workers {
    pub(crate) fn new() -> Workers {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let workers = |count: usize| Arc::new(Semaphore::new(count.max(1)));
        Workers { small: workers(cores), large: workers(cores / 2) }
    }

    fn for_body(&self, bytes: usize) -> &Arc<Semaphore> {
        if bytes <= SMALL_BODY { &self.small } else { &self.large }
    }
}

/// Cancels a preparation when its client disconnects or its deadline passes.
#[derive(Clone)]
pub(crate) struct Cancel {
    disconnected: Arc<AtomicBool>,
    deadline: Option<Instant>,
    /// The request timeout in seconds, for the error.
    seconds: f64,
}

/// Cancels the preparation when it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Cancel {
    fn new(app: &App, log: &RequestLog) -> (Cancel, CancelOnDrop) {
        let disconnected = Arc::<AtomicBool>::default();
        let deadline = app.config.request_timeout.map(|limit| log.start + limit);
        let cancel = Cancel { disconnected: Arc::clone(&disconnected), deadline, seconds: app.timeout() };
        (cancel, CancelOnDrop(disconnected))
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.disconnected.load(Ordering::Relaxed) || self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    /// Why the preparation was cancelled.
    pub(crate) fn error(&self) -> ApiError {
        match self.disconnected.load(Ordering::Relaxed) {
            true => ApiError::new(StatusCode::BAD_REQUEST, "the client has disconnected"),
            false => ApiError::timeout(self.seconds),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(self.error()) } else { Ok(()) }
    }
}

/// Turns a body into what a route needs.
pub(crate) type Prepare<T> = fn(&[u8], &ServedModel, &Config, &Cancel) -> Result<T>;

impl App {
    /// Reads a body and prepares it for the loaded model, within the request's deadline.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        log: &RequestLog,
        body: Body,
        prepare: Prepare<T>,
    ) -> Result<(Arc<ServedModel>, T)> {
        let served = self.served()?;
        self.fault().map_or(Ok(()), Err)?;
        // dropped with this future when the client disconnects or the deadline passes
        let (cancel, _guard) = Cancel::new(self, log);
        let deadline = cancel.deadline;
        let prepared = async {
            let body = read(body, &self.config, &self.bodies).await?;
            let (config, model) = (self.config.clone(), Arc::clone(&served));
            self.work(body.len(), move || {
                cancel.check()?;
                prepare(&body, &model, &config, &cancel)
            })
            .await
        };
        let in_time = async {
            match deadline {
                None => prepared.await,
                Some(at) => timeout_at(at.into(), prepared)
                    .await
                    .unwrap_or_else(|_| Err(ApiError::timeout(self.timeout()))),
            }
        };
        let prepared = tokio::select! {
            prepared = in_time => prepared?,
            () = self.stopped(Stop::Now) => return Err(ApiError::shutting_down()),
        };
        Ok((served, prepared))
    }

    /// Runs the CPU-bound work for a body of `bytes` bytes on a blocking thread.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = Arc::clone(self.workers.for_body(bytes)).acquire_owned().await;
        let done = spawn_blocking(move || {
            let _permit = permit; // held also if the caller is gone
            work()
        });
        done.await.unwrap_or_else(|_| Err(ApiError::internal()))
    }
}
