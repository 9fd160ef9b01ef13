//! What all requests share: settings, the model once it is there, counts, and whether the server is on its way out.

use std::sync::{Arc, PoisonError, RwLock};

use axum::http::StatusCode;
use tern_engine::EngineError;
use tokio::sync::watch;

use crate::auth::Keys;
use crate::body::HeldBytes;
use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::model::Served;
use crate::prepare::Workers;
use crate::probe::Probe;
use crate::{Config, Model};

/// Shared by all requests.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) metrics: Metrics,
    pub(crate) probe: tokio::sync::Mutex<Probe>,
    phase: RwLock<Phase>,
    stop: watch::Sender<Stop>,
    pub(crate) workers: Workers,
    pub(crate) bodies: Arc<HeldBytes>,
}

enum Phase {
    Loading,
    Ready(Arc<Served>),
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
            phase: RwLock::new(Phase::Loading),
            stop: watch::Sender::new(Stop::No),
            workers: Workers::new(),
            bodies: Arc::default(),
            config,
        }
    }

    /// The model, or why there is none now.
    pub(crate) fn served(&self) -> Result<Arc<Served>> {
        let unavailable = |words: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, words);
        match &*self.phase.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Ready(served) => Ok(Arc::clone(served)),
            Phase::Loading => Err(unavailable("the model is loading".into()).code("loading").retry(2)),
            Phase::Failed(why) => {
                Err(unavailable(format!("the model could not be loaded: {why}")).code("load_failed"))
            }
        }
    }

    /// What the engine said, for a client.
    pub(crate) fn engine_error(&self, error: EngineError) -> ApiError {
        if self.dead().is_some() {
            tracing::error!(%error, "the engine is gone");
        }
        error.into()
    }

    /// Why the engine works no more.
    pub(crate) fn dead(&self) -> Option<String> {
        self.served().ok()?.model.handle.ended().map(|why| why.to_string())
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
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = phase;
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
    pub fn ready(mut self, model: Model) {
        self.told = true;
        self.app.enter(Phase::Ready(Arc::new(Served::new(model))));
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
            self.app.enter(Phase::Failed("loading ended without a model".into()));
        }
    }
}
