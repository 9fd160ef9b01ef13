//! The models of a server: one that is loaded at the start, or those of a library.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::{self, ServeError};
use crate::http::error::{ApiError, Result};
use crate::models::keep::KeepModels;
use crate::models::library::Library;
use crate::models::many::Many;
use crate::models::model::ServedModel;
use crate::models::refusals::{loading, unknown_model};
use crate::models::slot::{Phase, Slot, drop_in_background};

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

/// Why the server should be restarted: its only model could not be loaded, or an
/// engine is stuck or has ended.
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
