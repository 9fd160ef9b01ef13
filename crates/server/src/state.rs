//! What all requests share: settings, the model once it is there, counts, and whether the server is on its way out.

use std::sync::Arc;

use axum::http::StatusCode;
use tern::engine::{EngineError, Fault};
use tokio::sync::watch;

use crate::Config;
use crate::auth::Keys;
use crate::body::HeldBytes;
use crate::error::{ApiError, Result};
use crate::failure::{self, ServeError};
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::prepare::Workers;
use crate::probe::Probe;

/// Shared by all requests.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) metrics: Metrics,
    pub(crate) probe: tokio::sync::Mutex<Probe>,
    phase: watch::Sender<Phase>,
    stop: watch::Sender<Stop>,
    pub(crate) workers: Workers,
    pub(crate) bodies: Arc<HeldBytes>,
}

#[derive(Clone)]
enum Phase {
    Loading,
    Ready(Arc<ServedModel>),
    Failed(String),
}

/// How far the server is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    /// What runs may finish.
    Draining,
    /// What still runs is ended.
    Now,
}

impl App {
    pub(crate) fn new(config: Config) -> App {
        App {
            keys: Keys::new(&config.api_keys),
            metrics: Metrics::new(),
            probe: tokio::sync::Mutex::new(Probe::default()),
            phase: watch::Sender::new(Phase::Loading),
            stop: watch::Sender::new(Stop::No),
            workers: Workers::new(),
            bodies: Arc::default(),
            config,
        }
    }

    /// The model, or why there is none now.
    pub(crate) fn served(&self) -> Result<Arc<ServedModel>> {
        match &*self.phase.borrow() {
            Phase::Ready(served) => Ok(Arc::clone(served)),
            Phase::Loading => {
                let message = "the model is loading";
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("loading").retry(2))
            }
            Phase::Failed(why) => Err((&ServeError::Load(why.clone())).into()),
        }
    }

    /// Why the process should be started anew: there will be no model, or its engine has ended or is stuck.
    pub(crate) fn fault(&self) -> Option<ApiError> {
        match &*self.phase.borrow() {
            Phase::Ready(served) => failure::fault(served.model.handle(), self.config.stall_timeout),
            Phase::Loading => None,
            Phase::Failed(why) => Some((&ServeError::Load(why.clone())).into()),
        }
    }

    /// Returns when nothing can be served any more, and says why.
    pub(crate) async fn failure(&self) -> ServeError {
        let mut phase = self.phase.subscribe();
        let settled =
            phase.wait_for(|phase| !matches!(phase, Phase::Loading)).await.map(|phase| phase.clone());
        match settled {
            Ok(Phase::Ready(served)) => ServeError::Engine(served.model.handle().closed().await),
            Ok(Phase::Failed(why)) => ServeError::Load(why),
            // cannot be: `self` has the sender
            Ok(Phase::Loading) | Err(_) => std::future::pending().await,
        }
    }

    /// What the engine said to a request that it did not take, for its client.
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

    /// Returns when the server is at least that far on its way out.
    pub(crate) fn stopped(&self, stop: Stop) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.stop.subscribe();
        async move {
            if receiver.wait_for(|now| *now >= stop).await.is_err() {
                std::future::pending().await // the server is gone, and so is whoever waits
            }
        }
    }

    /// Seconds a request may take, for its error.
    pub(crate) fn timeout(&self) -> f64 {
        self.config.request_timeout.unwrap_or_default().as_secs_f64()
    }

    fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }
}

/// Tells a server what became of its model. Dropping it without a word counts as a failure.
pub struct Loader {
    app: Arc<App>,
    told: bool,
}

impl Loader {
    pub(crate) fn new(app: Arc<App>) -> Loader {
        Loader { app, told: false }
    }

    /// The model is loaded: from now on it is served.
    pub fn ready(mut self, model: ServedModel) {
        self.told = true;
        self.app.enter(Phase::Ready(Arc::new(model)));
    }

    /// The model could not be loaded; requests are told why.
    pub fn failed(mut self, why: impl Into<String>) {
        self.told = true;
        self.app.enter(Phase::Failed(why.into()));
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if !self.told {
            let why = match std::thread::panicking() {
                true => "loading the model panicked; see the panic message in the log",
                false => "loading ended without a model",
            };
            self.app.enter(Phase::Failed(why.into()));
        }
    }
}
