//! What all requests share: settings, the model once it is there, counts, and whether the server is on its way out.

use std::sync::{Arc, PoisonError, RwLock};

use axum::body::Body;
use axum::http::StatusCode;
use tern_engine::EngineError;
use tokio::sync::{Semaphore, watch};

use crate::auth::Keys;
use crate::body::read;
use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::model::Served;
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
    /// How many requests may be read, rendered and tokenised at once: it is work for a processor.
    workers: Arc<Semaphore>,
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
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        App {
            keys: Keys::new(&config.api_keys),
            metrics: Metrics::new(),
            probe: tokio::sync::Mutex::new(Probe::default()),
            phase: RwLock::new(Phase::Loading),
            stop: watch::Sender::new(Stop::No),
            workers: Arc::new(Semaphore::new(cores)),
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

    /// Runs what a request costs a processor beside the reactor, which must not wait for it.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = Arc::clone(&self.workers).acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit; // also when nobody waits for the result any more
            work()
        });
        done.await.unwrap_or_else(|_| Err(ApiError::internal()))
    }

    /// Reads a body and makes of it what a route needs, with the model at hand.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        body: Body,
        prepare: fn(&[u8], &Served, &Config) -> Result<T>,
    ) -> Result<(Arc<Served>, T)> {
        let served = self.served()?;
        let body = read(body, self.config.max_body, self.config.read_timeout).await?;
        let (config, model) = (self.config.clone(), Arc::clone(&served));
        let prepared = self.work(move || prepare(&body, &model, &config)).await?;
        Ok((served, prepared))
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
