//! What a request costs before the engine: its body is read, parsed, rendered and tokenised beside the reactor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::http::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use crate::Config;
use crate::access::Record;
use crate::body::read;
use crate::error::{ApiError, Result};
use crate::model::ServedModel;
use crate::state::{App, Stop};

/// Bodies up to this size have workers of their own, so that they never wait for larger ones.
const SMALL_BODY: usize = 64 << 10;

/// How many requests may be prepared at once: it is work for a processor.
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

/// Whether the result of a preparation is still wanted: its client may leave, and its time may run out.
#[derive(Clone)]
pub(crate) struct Cancel {
    left: Arc<AtomicBool>,
    deadline: Option<Instant>,
    /// Seconds until the deadline at the start, for the error.
    seconds: f64,
}

/// Cancels when it is dropped.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Cancel {
    fn new(app: &App, record: &Record) -> (Cancel, Waiting) {
        let left = Arc::<AtomicBool>::default();
        let deadline = app.config.request_timeout.map(|limit| record.start + limit);
        (Cancel { left: Arc::clone(&left), deadline, seconds: app.timeout() }, Waiting(left))
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.left.load(Ordering::Relaxed) || self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    /// Why the work ends here.
    pub(crate) fn error(&self) -> ApiError {
        match self.left.load(Ordering::Relaxed) {
            // said to nobody
            true => ApiError::new(StatusCode::BAD_REQUEST, "the client has left"),
            false => ApiError::timeout(self.seconds),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(self.error()) } else { Ok(()) }
    }
}

/// Makes of a body what a route needs.
pub(crate) type Prepare<T> = fn(&[u8], &ServedModel, &Config, &Cancel) -> Result<T>;

impl App {
    /// Reads a body and prepares it with the model at hand, within the time that the request has.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        record: &Record,
        body: Body,
        prepare: Prepare<T>,
    ) -> Result<(Arc<ServedModel>, T)> {
        let served = self.served()?;
        self.fault().map_or(Ok(()), Err)?;
        // dropped with this future, when the client leaves or the time is up
        let (cancel, _waiting) = Cancel::new(self, record);
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

    /// Runs what a body of so many bytes costs a processor beside the reactor, which must not wait for it.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = Arc::clone(self.workers.for_body(bytes)).acquire_owned().await;
        let done = spawn_blocking(move || {
            let _permit = permit; // also when nobody waits for the result any more
            work()
        });
        done.await.unwrap_or_else(|_| Err(ApiError::internal()))
    }
}
