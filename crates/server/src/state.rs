//! State shared by all requests: configuration, the models, metrics, and the progress of a shutdown.

use std::sync::{Arc, OnceLock};

use tern::engine::{EngineError, Fault};
use tokio::sync::{Semaphore, watch};

use crate::Config;
use crate::batches::Batches;
use crate::failure::ServeError;
use crate::http::auth::{Key, Keys};
use crate::http::body::HeldBytes;
use crate::http::error::ApiError;
use crate::metrics::Metrics;
use crate::models::model::ServedModel;
use crate::models::probe::Probe;
use crate::models::registry::{self, Registry};
use crate::models::slot::Phase;
use crate::request::workers::Workers;
use crate::response_store::{KeyResponses, ResponseStore};

/// Requests whose images are read at once.
const IMAGE_READERS: usize = 16;

/// Shared by all requests.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) metrics: Metrics,
    pub(crate) probe: tokio::sync::Mutex<Probe>,
    pub(crate) registry: Registry,
    stop: watch::Sender<Stop>,
    pub(crate) workers: Workers,
    /// Limits how many requests have their images read at once.
    pub(crate) readers: Arc<Semaphore>,
    pub(crate) bodies: Arc<HeldBytes>,
    responses: Arc<ResponseStore>,
    batches: OnceLock<Arc<Batches>>,
}

/// The progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    /// Running requests may finish.
    Draining,
    /// Running requests are ended.
    Now,
}

impl App {
    pub(crate) fn new(config: Config, registry: Registry) -> App {
        App {
            keys: Keys::new(&config.api_keys),
            metrics: Metrics::default(),
            probe: tokio::sync::Mutex::new(Probe::default()),
            registry,
            stop: watch::Sender::new(Stop::No),
            workers: Workers::new(),
            readers: Arc::new(Semaphore::new(IMAGE_READERS)),
            bodies: Arc::default(),
            responses: Arc::new(ResponseStore::new(config.max_stored_responses, config.max_stored_bytes)),
            batches: OnceLock::new(),
            config,
        }
    }

    /// Why the process should be restarted: loading failed, or an engine has ended or is stuck.
    pub(crate) fn fault(&self) -> Option<ApiError> {
        registry::fault(&self.registry, self.config.stall_timeout)
    }

    /// Whether no request can be served any more.
    pub(crate) fn has_ended(&self) -> bool {
        match &self.registry {
            Registry::One(slot) => slot.has_failed(),
            Registry::Many(_) => false,
        }
    }

    /// Waits until no request can be served any more, and returns why. Models of a
    /// library are replaced instead.
    pub(crate) async fn failure(&self) -> ServeError {
        let Registry::One(slot) = &self.registry else { return std::future::pending().await };
        let mut phase = slot.phase.subscribe();
        let settled =
            phase.wait_for(|phase| !matches!(phase, Phase::Loading)).await.map(|phase| phase.clone());
        match settled {
            Ok(Phase::Ready(served)) => ServeError::Engine(served.model.handle().closed().await),
            Ok(Phase::Failed(why) | Phase::NoMemory(why)) => ServeError::Load(why),
            // unreachable: `self` owns the sender
            Ok(Phase::Loading) | Err(_) => std::future::pending().await,
        }
    }

    /// The response to a request that the engine refused.
    pub(crate) fn refusal(&self, error: EngineError) -> ApiError {
        match error.fault() {
            Fault::Engine => (&ServeError::Engine(error)).into(),
            Fault::Request | Fault::Busy => error.into(),
        }
    }

    pub(crate) fn stopping(&self) -> Stop {
        *self.stop.borrow()
    }

    pub(crate) fn stop(&self, stop: Stop) {
        self.stop.send_replace(stop);
    }

    /// Waits until the shutdown has reached `stop`.
    pub(crate) fn stopped(&self, stop: Stop) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.stop.subscribe();
        async move {
            if receiver.wait_for(|now| *now >= stop).await.is_err() {
                std::future::pending().await // the server was dropped, and the caller with it
            }
        }
    }

    /// The request timeout in seconds, for error messages.
    pub(crate) fn timeout(&self) -> f64 {
        self.config.request_timeout.unwrap_or_default().as_secs_f64()
    }

    /// The stored responses that a client may use.
    pub(crate) fn responses(&self, key: Key) -> KeyResponses {
        self.responses.of(self.owner(key))
    }

    /// Whose it is what a client with this key stores: its key's, or of all if the server needs none.
    pub(crate) fn owner(&self, key: Key) -> Key {
        if self.keys.are_required() { key } else { Key::NONE }
    }

    /// The files and batches.
    pub(crate) fn batches(&self) -> Option<&Arc<Batches>> {
        self.batches.get()
    }

    /// Sets the files and batches, once.
    pub(crate) fn set_batches(&self, batches: Batches) {
        let _ = self.batches.set(Arc::new(batches));
    }

    fn enter(&self, phase: Phase) {
        if let Registry::One(slot) = &self.registry {
            slot.phase.send_replace(phase);
        }
    }
}

/// Hands a loaded model, or the reason why loading failed, to a server. Dropping it
/// unused counts as a failure.
pub struct Loader {
    app: Arc<App>,
    reported: bool,
}

impl Loader {
    pub(crate) fn new(app: Arc<App>) -> Loader {
        Loader { app, reported: false }
    }

    /// The model is loaded and is served from now on.
    pub fn ready(mut self, model: ServedModel) {
        self.reported = true;
        self.app.enter(Phase::Ready(Arc::new(model)));
    }

    /// The model could not be loaded; requests are refused with the reason.
    pub fn failed(mut self, why: impl Into<String>) {
        self.reported = true;
        self.app.enter(Phase::Failed(why.into()));
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if !self.reported {
            let why = match std::thread::panicking() {
                true => "loading the model panicked; see the panic message in the log",
                false => "loading ended without a model",
            };
            self.app.enter(Phase::Failed(why.into()));
        }
    }
}
