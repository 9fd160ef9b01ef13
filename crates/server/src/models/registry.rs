//! The models of a server: one that is loaded at the start, or those of a library.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::task::spawn_blocking;

use crate::failure::{self, ServeError};
use crate::http::error::{ApiError, Result};
use crate::models::library::Library;
use crate::models::many::Many;
use crate::models::model::ServedModel;
use crate::models::names::shortened;
pub(crate) use crate::models::slot::{Phase, Slot};

/// How models of a library are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepModels {
    /// How long an idle model stays loaded; none keeps it until its memory is needed.
    pub keep_alive: Option<Duration>,
    /// Maximum bytes of all loaded models; idle ones are dropped for a new one.
    pub memory: Option<u64>,
    /// How long a request waits for a model that is being loaded.
    pub load_wait: Duration,
    /// How long a load may take. Requests for a model that takes longer are refused at once until it is
    /// loaded after all.
    pub load_timeout: Duration,
}

impl Default for KeepModels {
    fn default() -> KeepModels {
        let (load_wait, load_timeout) = (Duration::from_secs(60), Duration::from_secs(600));
        KeepModels { keep_alive: None, memory: None, load_wait, load_timeout }
    }
}

pub(crate) enum Registry {
    /// One model, loaded at the start. Its failure ends the server.
    One(Arc<Slot>),
    Many(Arc<Many>),
}

impl Registry {
    pub(crate) fn one() -> Registry {
        Registry::One(Arc::new(Slot::new(String::new(), None)))
    }

    pub(crate) fn many(library: Arc<dyn Library>, keep: KeepModels) -> Registry {
        Registry::Many(Arc::new(Many::new(library, keep)))
    }

    /// The model of this name, or the default one; it is loaded if it is not.
    pub(crate) async fn model(&self, name: Option<&str>) -> Result<Arc<ServedModel>> {
        match self {
            Registry::One(slot) => one_model(slot, name),
            Registry::Many(many) => many.model(name).await,
        }
    }

    /// All models that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Arc<ServedModel>> {
        self.slots().iter().filter_map(|slot| slot.served()).collect()
    }

    pub(crate) fn slots(&self) -> Vec<Arc<Slot>> {
        match self {
            Registry::One(slot) => vec![Arc::clone(slot)],
            Registry::Many(many) => many.slots().clone(),
        }
    }

    /// Sets how long the model of this name stays loaded.
    pub(crate) fn keep(&self, served: &ServedModel, keep_alive: Option<Duration>) {
        let Registry::Many(many) = self else { return };
        let slots = many.slots();
        let is = |slot: &&Arc<Slot>| slot.served().is_some_and(|loaded| std::ptr::eq(&*loaded, served));
        if let Some(slot) = slots.iter().find(is) {
            slot.usage().keep_alive = keep_alive;
        }
    }

    /// Unloads the model of this name; returns whether it was loaded. Requests that use it keep it until they
    /// end, and one that is being loaded stays.
    pub(crate) async fn unload(&self, name: &str) -> bool {
        let Registry::Many(many) = self else { return false };
        let name = many.find(name).await.unwrap_or_else(|| name.to_owned());
        let mut slots = many.slots();
        let at = slots.iter().position(|slot| slot.name == name && !slot.is_loading());
        let removed = at.map(|at| slots.remove(at));
        drop(slots);
        drop_in_background(removed.into_iter().collect())
    }

    /// Drops models that were idle for too long.
    pub(crate) fn sweep(&self) {
        let Registry::Many(many) = self else { return };
        let now = Instant::now();
        let expired = |slot: &Arc<Slot>| {
            let mut usage = slot.usage();
            let idle = slot.is_idle();
            if !idle {
                usage.used = now;
            }
            let expired = usage.keep_alive.is_some_and(|keep| now.duration_since(usage.used) >= keep);
            slot.has_failed() || (idle && expired)
        };
        let mut slots = many.slots();
        let (gone, kept) = std::mem::take(&mut *slots).into_iter().partition(expired);
        *slots = kept;
        drop(slots);
        drop_in_background(gone);
    }
}

/// The only model of a server.
fn one_model(slot: &Slot, name: Option<&str>) -> Result<Arc<ServedModel>> {
    let served = match &*slot.phase.borrow() {
        Phase::Ready(served) => Arc::clone(served),
        Phase::Loading => return Err(loading("the model is loading".into())),
        Phase::Failed(why) | Phase::NoMemory(why) => return Err((&ServeError::Load(why.clone())).into()),
    };
    match name {
        Some(name) if !served.has_name(name) => Err(unknown_model(name, served.id())),
        _ => Ok(served),
    }
}

/// The response to requests for a model that is being loaded.
pub(crate) fn loading(message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("loading").retry(2)
}

/// A name that no model has; `known` are the names of those that exist.
pub(crate) fn unknown_model(name: &str, known: &str) -> ApiError {
    not_found(format!("the model {:?} does not exist; this server has {known:?}", shortened(name)))
}

/// A 404 response about the model.
pub(crate) fn not_found(message: String) -> ApiError {
    let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
    ApiError { param: Some("model".into()), ..error }
}

/// Drops models on a blocking thread, because the end of an engine waits for its step; returns whether there were any.
pub(crate) fn drop_in_background(slots: Vec<Arc<Slot>>) -> bool {
    let some = !slots.is_empty();
    if some {
        for slot in &slots {
            tracing::info!(model = %slot.name, "unloaded");
        }
        drop(spawn_blocking(move || drop(slots)));
    }
    some
}

/// Why the server should be restarted: its only model could not be loaded, or an engine is stuck or has ended.
pub(crate) fn fault(registry: &Registry, stall_timeout: Duration) -> Option<ApiError> {
    match registry {
        Registry::One(slot) => match &*slot.phase.borrow() {
            Phase::Ready(served) => failure::fault(served.model.handle(), stall_timeout),
            Phase::Loading => None,
            Phase::Failed(why) | Phase::NoMemory(why) => Some((&ServeError::Load(why.clone())).into()),
        },
        // an engine that has ended is replaced by the next request
        Registry::Many(_) => {
            let loaded = registry.loaded();
            let mut running = loaded.iter().filter(|served| served.model.handle().ended().is_none());
            running.find_map(|served| failure::fault(served.model.handle(), stall_timeout))
        }
    }
}
