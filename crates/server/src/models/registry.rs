//! The models of a server: one that is loaded at the start, or those of a library, loaded when they are requested and
//! dropped when they are idle or their memory is needed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::failure::{self, ServeError};
use crate::http::error::{ApiError, Result};
use crate::models::library::Library;
use crate::models::model::ServedModel;

/// What is known of a model.
#[derive(Clone)]
pub(crate) enum Phase {
    Loading,
    Ready(Arc<ServedModel>),
    Failed(String),
}

/// A model that is loaded, loading, or failed to load.
pub(crate) struct Slot {
    /// Its name in the library; empty for the only model of a server.
    pub(crate) name: String,
    /// The size of its files.
    file_bytes: u64,
    pub(crate) phase: watch::Sender<Phase>,
    usage: Mutex<SlotUsage>,
}

/// When a model was used, and how long it stays loaded after that.
#[derive(Clone, Copy)]
pub(crate) struct SlotUsage {
    pub(crate) used: Instant,
    /// None: until its memory is needed.
    pub(crate) keep_alive: Option<Duration>,
}

/// How models of a library are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepModels {
    /// How long an idle model stays loaded; none keeps it until its memory is needed.
    pub keep_alive: Option<Duration>,
    /// Maximum bytes of all loaded models; idle ones are dropped for a new one.
    pub memory: Option<u64>,
}

pub(crate) enum Registry {
    /// One model, loaded at the start. Its failure ends the server.
    One(Arc<Slot>),
    Many(Many),
}

/// The models of a library.
pub(crate) struct Many {
    pub(crate) library: Arc<dyn Library>,
    keep: KeepModels,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// One model is loaded at a time, so that memory is counted correctly.
    loading: tokio::sync::Mutex<()>,
}

impl Slot {
    fn new(name: String, file_bytes: u64, keep_alive: Option<Duration>) -> Slot {
        let usage = SlotUsage { used: Instant::now(), keep_alive };
        Slot { name, file_bytes, phase: watch::Sender::new(Phase::Loading), usage: Mutex::new(usage) }
    }

    /// Memory that it takes; its files are the least, also if its device is not known.
    fn bytes(&self) -> u64 {
        self.served().map_or(0, |served| served.bytes().max(self.file_bytes))
    }

    /// The loaded model.
    pub(crate) fn served(&self) -> Option<Arc<ServedModel>> {
        match &*self.phase.borrow() {
            Phase::Ready(served) => Some(Arc::clone(served)),
            Phase::Loading | Phase::Failed(_) => None,
        }
    }

    pub(crate) fn usage(&self) -> MutexGuard<'_, SlotUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is loaded and no request holds it.
    fn is_idle(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Ready(served) => Arc::strong_count(served) == 1,
            Phase::Loading | Phase::Failed(_) => false,
        }
    }

    /// Whether it can serve no request any more.
    fn has_failed(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Ready(served) => served.model.handle().ended().is_some(),
            Phase::Loading => false,
            Phase::Failed(_) => true,
        }
    }
}

impl Registry {
    pub(crate) fn one() -> Registry {
        Registry::One(Arc::new(Slot::new(String::new(), 0, None)))
    }

    pub(crate) fn many(library: Arc<dyn Library>, keep: KeepModels) -> Registry {
        let (slots, loading) = (Mutex::default(), tokio::sync::Mutex::default());
        Registry::Many(Many { library, keep, slots, loading })
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
            Registry::Many(many) => many.lock().clone(),
        }
    }

    /// Sets how long the model of this name stays loaded.
    pub(crate) fn keep(&self, served: &ServedModel, keep_alive: Option<Duration>) {
        let Registry::Many(many) = self else { return };
        let slots = many.lock();
        let is = |slot: &&Arc<Slot>| slot.served().is_some_and(|loaded| std::ptr::eq(&*loaded, served));
        if let Some(slot) = slots.iter().find(is) {
            slot.usage().keep_alive = keep_alive;
        }
    }

    /// Unloads the model of this name; returns whether it was loaded. Requests that use it keep it until they end.
    pub(crate) fn unload(&self, name: &str) -> bool {
        let Registry::Many(many) = self else { return false };
        let name = many.find(name).unwrap_or_else(|| name.to_owned());
        let mut slots = many.lock();
        let at = slots.iter().position(|slot| slot.name == name);
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
        let mut slots = many.lock();
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
        Phase::Loading => return Err(loading()),
        Phase::Failed(why) => return Err((&ServeError::Load(why.clone())).into()),
    };
    match name {
        Some(name) if !served.has_name(name) => Err(unknown_model(name, served.id())),
        _ => Ok(served),
    }
}

fn loading() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the model is loading").code("loading").retry(2)
}

/// A name that no model has; `known` are the names of those that exist.
pub(crate) fn unknown_model(name: &str, known: &str) -> ApiError {
    let name: String = name.chars().take(100).collect();
    let message = format!("the model {name:?} does not exist; this server has {known:?}");
    let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
    ApiError { param: Some("model".into()), ..error }
}

/// Drops models on a blocking thread, because the end of an engine waits for its step; returns whether there were any.
fn drop_in_background(slots: Vec<Arc<Slot>>) -> bool {
    let some = !slots.is_empty();
    if some {
        for slot in &slots {
            tracing::info!(model = %slot.name, "unloaded");
        }
        drop(spawn_blocking(move || drop(slots)));
    }
    some
}

impl Many {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name in the library of a requested name; Ollama's clients append a tag.
    pub(crate) fn find(&self, name: &str) -> Option<String> {
        let untagged = name.strip_suffix(":latest");
        self.library.find(name).or_else(|| self.library.find(untagged?))
    }

    async fn model(&self, name: Option<&str>) -> Result<Arc<ServedModel>> {
        let name = match name {
            None => {
                let first =
                    self.lock().iter().find(|slot| slot.served().is_some()).map(|slot| slot.name.clone());
                let default = || self.library.list().first().map(|model| model.name.clone());
                first.or_else(default).ok_or_else(|| {
                    let message = "this server has no models: download one with `tern pull` or /api/pull";
                    ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
                })?
            }
            Some(given) if self.running(given).is_some() => given.to_owned(),
            Some(given) => self.find(given).ok_or_else(|| {
                let names: Vec<String> = self.library.list().into_iter().map(|model| model.name).collect();
                unknown_model(given, &names.join(", "))
            })?,
        };
        if let Some(served) = self.running(&name) {
            return Ok(served);
        }
        let turn = self.loading.lock().await;
        if let Some(served) = self.running(&name) {
            return Ok(served); // loaded while this request waited
        }
        let loaded = self.load(&name).await;
        drop(turn);
        loaded
    }

    /// The model if it is loaded and its engine has not ended.
    fn running(&self, name: &str) -> Option<Arc<ServedModel>> {
        let slots = self.lock();
        let slot = slots.iter().find(|slot| slot.name == name)?;
        let served = slot.served().filter(|served| served.model.handle().ended().is_none())?;
        slot.usage().used = Instant::now();
        Some(served)
    }

    async fn load(&self, name: &str) -> Result<Arc<ServedModel>> {
        // an engine that has ended, or a load that failed, is replaced
        self.lock().retain(|slot| slot.name != name);
        let bytes =
            self.library.list().iter().find(|model| model.name == name).map_or(0, |model| model.bytes);
        self.make_room(bytes).await?;
        let slot = Arc::new(Slot::new(name.to_owned(), bytes, self.keep.keep_alive));
        self.lock().push(Arc::clone(&slot));
        let mut result = self.load_once(name).await;
        // other models may hold the memory: without the idle ones it may fit
        if result.is_err() && self.drop_idle(usize::MAX).await {
            result = self.load_once(name).await;
        }
        match result {
            Ok(served) => {
                let served = Arc::new(served);
                slot.phase.send_replace(Phase::Ready(Arc::clone(&served)));
                slot.usage().used = Instant::now();
                Ok(served)
            }
            Err(why) => {
                tracing::error!(model = name, %why, "the model could not be loaded");
                slot.phase.send_replace(Phase::Failed(why.clone()));
                Err((&ServeError::Load(why)).into())
            }
        }
    }

    async fn load_once(&self, name: &str) -> std::result::Result<ServedModel, String> {
        let (library, owned) = (Arc::clone(&self.library), name.to_owned());
        let loaded = spawn_blocking(move || library.load(&owned)).await;
        loaded.unwrap_or_else(|_| Err("loading the model panicked; see the panic message in the log".into()))
    }

    /// Drops idle models, least recently used first, until a model of `bytes` fits the memory limit.
    async fn make_room(&self, bytes: u64) -> Result<()> {
        let Some(limit) = self.keep.memory else { return Ok(()) };
        loop {
            let held: u64 = self.lock().iter().map(|slot| slot.bytes()).sum();
            if held == 0 || held.saturating_add(bytes) <= limit {
                return Ok(()); // one model may always be loaded
            }
            if !self.drop_idle(1).await {
                let message = format!(
                    "the models in use take {held} bytes, and {bytes} more exceed the limit of {limit}: retry later"
                );
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                    .code("memory_full")
                    .retry(5));
            }
        }
    }

    /// Drops up to `count` idle models, least recently used first, and waits until their memory is free.
    async fn drop_idle(&self, count: usize) -> bool {
        let gone = self.take_idle(count);
        let some = !gone.is_empty();
        for slot in &gone {
            tracing::info!(model = %slot.name, "unloaded to free memory");
        }
        let _ = spawn_blocking(move || drop(gone)).await;
        some
    }

    fn take_idle(&self, count: usize) -> Vec<Arc<Slot>> {
        let mut slots = self.lock();
        slots.sort_by_key(|slot| slot.usage().used);
        let mut left = count;
        let idle = |slot: &Arc<Slot>| {
            let drops = left > 0 && slot.is_idle();
            left -= usize::from(drops);
            drops
        };
        let (gone, kept) = std::mem::take(&mut *slots).into_iter().partition(idle);
        *slots = kept;
        gone
    }
}

/// Why the server should be restarted: its only model could not be loaded, or an engine is stuck or has ended.
pub(crate) fn fault(registry: &Registry, stall_timeout: Duration) -> Option<ApiError> {
    match registry {
        Registry::One(slot) => match &*slot.phase.borrow() {
            Phase::Ready(served) => failure::fault(served.model.handle(), stall_timeout),
            Phase::Loading => None,
            Phase::Failed(why) => Some((&ServeError::Load(why.clone())).into()),
        },
        // an engine that has ended is replaced by the next request
        Registry::Many(_) => {
            let loaded = registry.loaded();
            let mut running = loaded.iter().filter(|served| served.model.handle().ended().is_none());
            running.find_map(|served| failure::fault(served.model.handle(), stall_timeout))
        }
    }
}
