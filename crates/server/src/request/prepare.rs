//! The work of a request that precedes the engine: its body is read, parsed, rendered and
//! tokenized on blocking threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::http::StatusCode;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use crate::Config;
use crate::failure::fault;
use crate::http::body::read;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::model::ServedModel;
use crate::models::registry::Registry;
use crate::request::images;
use crate::request::named_images::NamedImages;
use crate::request::params::{Params, Unparsed};
use crate::response_store::KeyResponses;
use crate::state::{App, Stop};

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
        let deadline = log.deadline(app.config.request_timeout);
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

/// A body, and what its preparation may use.
pub(crate) struct Preparation<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) served: &'a ServedModel,
    pub(crate) config: &'a Config,
    pub(crate) cancel: &'a Cancel,
    /// Those of the client's key.
    pub(crate) responses: &'a KeyResponses,
    /// The images that the body names by URL.
    pub(crate) images: &'a NamedImages,
}

/// Turns a body into what a route needs.
pub(crate) type Prepare<T> = fn(&Preparation<'_>) -> Result<T>;

/// The model that a body names.
fn requested_model(body: &[u8]) -> Result<Option<String>> {
    #[derive(serde::Deserialize)]
    struct Named {
        model: Option<Value>,
        /// In older requests of Ollama's API.
        name: Option<Value>,
    }
    match serde_json::from_slice(body).map(|Named { model, name }| model.or(name)) {
        Ok(Some(Value::String(name))) => Ok(Some(name)),
        Ok(None | Some(Value::Null)) => Ok(None),
        Ok(Some(other)) => Err(ApiError::expected("model", "a string", &other)),
        // the error of a body that is not JSON, or not an object
        Err(_) => Params::parse(body, Unparsed::default()).map(|_| None),
    }
}

impl App {
    /// Reads a body and prepares it for the model that it names, within the request's deadline.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        log: &RequestLog,
        body: Body,
        prepare: Prepare<T>,
    ) -> Result<(Arc<ServedModel>, T)> {
        let only = match &self.registry {
            Registry::One(_) => {
                self.fault().map_or(Ok(()), Err)?;
                Some(self.registry.model(None).await?) // before the body is read
            }
            Registry::Many(_) => None,
        };
        // dropped with this future when the client disconnects or the deadline passes
        let (cancel, _guard) = Cancel::new(self, log);
        let deadline = cancel.deadline;
        let prepared = async {
            let body = Arc::new(read(body, &self.config, &self.bodies).await?);
            let served = match only {
                Some(served) => served,
                None => {
                    let text = Arc::clone(&body);
                    let name = self.work(body.len(), move || requested_model(&text)).await?;
                    let served = self.registry.model(name.as_deref()).await?;
                    // its own engine: that of another model may be stuck
                    fault(served.model.handle(), self.config.stall_timeout).map_or(Ok(()), Err)?;
                    served
                }
            };
            let (config, model, responses) =
                (self.config.clone(), Arc::clone(&served), self.responses(log.sender.key));
            let named = NamedImages::new(config.image_urls.as_ref(), config.max_body);
            let (bytes, of_work, of_reading) = (body.len(), named.clone(), cancel.clone());
            let prepare = Arc::new(move || {
                cancel.check()?;
                let (body, served, config) = (&**body, &*model, &config);
                let (cancel, responses, images) = (&cancel, &responses, &of_work);
                prepare(&Preparation { body, served, config, cancel, responses, images })
            });
            let work = || {
                let prepare = Arc::clone(&prepare);
                self.work(bytes, move || prepare())
            };
            let mut prepared = work().await;
            // an image with a URL is empty until its file is read
            let is_of_images = prepared.as_ref().is_err_and(|error| error.code == Some(images::INVALID));
            if is_of_images && named.has_unread() {
                self.read_images(named, of_reading).await?;
                prepared = work().await;
            }
            Ok((served, prepared?))
        };
        let in_time = async {
            match deadline {
                None => prepared.await,
                Some(at) => timeout_at(at.into(), prepared)
                    .await
                    .unwrap_or_else(|_| Err(ApiError::timeout(self.timeout()))),
            }
        };
        tokio::select! {
            prepared = in_time => prepared,
            () = self.stopped(Stop::Now) => Err(ApiError::shutting_down()),
        }
    }

    /// Reads the images that a body names, while no worker waits for them.
    async fn read_images(&self, images: NamedImages, cancel: Cancel) -> Result<()> {
        let permit = Arc::clone(&self.readers).acquire_owned().await;
        let read = spawn_blocking(move || {
            let _permit = permit;
            images.read(|| cancel.is_cancelled());
        });
        read.await.map_err(|_| ApiError::internal())
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
