//! The models of a library: each is loaded on a separate thread when it is requested, beside other loads,
//! and dropped when it is idle or its memory is needed.
//!
//! A load reads and checks the model's files first, then reserves memory, for which idle models are dropped,
//! and then takes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use axum::http::StatusCode;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::failure::ServeError;
use crate::http::error::{ApiError, Result};
use crate::models::keep::KeepModels;
use crate::models::library::{CheckedLoad, Library};
use crate::models::model::ServedModel;
use crate::models::names::{listed, shortened};
use crate::models::pulls::Pulls;
use crate::models::refusals::{loading, not_found, unknown_model};
use crate::models::slot::{Phase, Slot, drop_in_background};

/// Loads at once, without those that take too long: these wait for a disk, and others must not wait for them.
const MAX_LOADS: usize = 8;

/// The models of a library.
pub(crate) struct Many {
    pub(crate) library: Arc<dyn Library>,
    pub(crate) pulls: Pulls,
    keep: KeepModels,
    slots: Mutex<Vec<Arc<Slot>>>,
}

impl Many {
    pub(crate) fn new(library: Arc<dyn Library>, keep: KeepModels) -> Many {
        Many { library, pulls: Pulls::default(), keep, slots: Mutex::default() }
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the library, on a blocking thread.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Library) -> T + Send + 'static,
    ) -> Result<T> {
        let library = Arc::clone(&self.library);
        spawn_blocking(move || ask(&*library)).await.map_err(|_| ApiError::internal())
    }

    /// The name in the library of a requested name; Ollama's clients append a tag.
    pub(crate) async fn find(&self, name: &str) -> Option<String> {
        let name = name.to_owned();
        let find = move |library: &dyn Library| {
            library.find(&name).or_else(|| library.find(name.strip_suffix(":latest")?))
        };
        self.ask(find).await.ok().flatten()
    }

    /// The model of this name, or the one of requests without a name; it is loaded if it is not.
    pub(crate) async fn model(self: &Arc<Many>, name: Option<&str>) -> Result<Arc<ServedModel>> {
        let name = match name {
            Some(name) if self.running(name).is_some() => name.to_owned(),
            Some(name) => match self.find(name).await {
                Some(found) => found,
                None => return Err(self.unknown(name).await?),
            },
            None => self.unnamed().await?,
        };
        let slot = match self.running(&name) {
            Some(served) => return Ok(served),
            None => self.begin(name)?,
        };
        self.settled(&slot).await
    }

    /// The model if it is loaded and its engine has not ended.
    fn running(&self, name: &str) -> Option<Arc<ServedModel>> {
        let slots = self.slots();
        let slot = slots.iter().find(|slot| slot.name == name)?;
        let served = slot.running()?;
        slot.usage().used = Instant::now();
        Some(served)
    }

    /// The response to a name that no model has.
    async fn unknown(&self, name: &str) -> Result<ApiError> {
        let given = name.to_owned();
        let (downloadable, names) = self
            .ask(move |library| {
                let names = library.list().into_iter().map(|model| model.name).collect::<Vec<_>>();
                (library.is_downloadable(&given), names)
            })
            .await?;
        Ok(match downloadable {
            true => {
                let name = shortened(name);
                not_found(format!(
                    "the model {name:?} is not downloaded: use `tern pull {name}` or /api/pull"
                ))
            }
            false => unknown_model(name, &listed(names.iter().map(String::as_str))),
        })
    }

    /// The model of requests that name none: the default one if it is loaded, else the loaded one that was
    /// used last, else the default one, else the only one.
    async fn unnamed(&self) -> Result<String> {
        let (default, models) = self.ask(|library| (library.default_model(), library.list())).await?;
        if let Some(default) = default.as_ref().filter(|default| self.running(default).is_some()) {
            return Ok(default.clone());
        }
        let last = {
            let slots = self.slots();
            let running = slots.iter().filter(|slot| slot.running().is_some());
            running.max_by_key(|slot| slot.usage().used).map(|slot| slot.name.clone())
        };
        if let Some(name) = last.or(default) {
            return Ok(name);
        }
        match models.as_slice() {
            [only] => Ok(only.name.clone()),
            [] => {
                Err(not_found("this server has no models: download one with `tern pull` or /api/pull".into()))
            }
            models => {
                let names = listed(models.iter().map(|model| model.name.as_str()));
                let message = format!("model: name one of this server's models: {names}");
                Err(ApiError::bad("model", message).code("model_required"))
            }
        }
    }

    /// The slot of a model, whose load begins unless it has begun.
    fn begin(self: &Arc<Many>, name: String) -> Result<Arc<Slot>> {
        let mut slots = self.slots();
        if let Some(at) = slots.iter().position(|slot| slot.name == name) {
            if slots[at].is_loading() || slots[at].running().is_some() {
                return Ok(Arc::clone(&slots[at]));
            }
            // an engine that has ended, or a load that failed, is replaced
            drop_in_background(vec![slots.remove(at)]);
        }
        let in_time = |slot: &&Arc<Slot>| slot.is_loading() && slot.age() <= self.keep.load_timeout;
        let loads = slots.iter().filter(in_time).count();
        if loads >= MAX_LOADS {
            return Err(loading(format!("{loads} other models are being loaded: retry later")));
        }
        let slot = Arc::new(Slot::new(name, self.keep.keep_alive));
        let (many, loaded) = (Arc::clone(self), Arc::clone(&slot));
        let thread = thread::Builder::new().name("tern-load".into()).spawn(move || many.load(&loaded));
        thread.map_err(|error| {
            let message = format!("cannot start the loading thread: {error}");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("load_failed").retry(5)
        })?;
        slots.push(Arc::clone(&slot));
        Ok(slot)
    }

    /// Waits for a model that is being loaded, within the limits.
    async fn settled(&self, slot: &Slot) -> Result<Arc<ServedModel>> {
        let KeepModels { load_wait, load_timeout, .. } = self.keep;
        let mut phase = slot.phase.subscribe();
        let wait = load_wait.min(load_timeout.saturating_sub(slot.age()));
        let settled = timeout(wait, phase.wait_for(|phase| !matches!(phase, Phase::Loading))).await;
        let phase = settled.ok().and_then(|phase| phase.ok().map(|phase| phase.clone()));
        match phase.unwrap_or_else(|| slot.phase.borrow().clone()) {
            Phase::Ready(served) => {
                slot.usage().used = Instant::now();
                Ok(served)
            }
            Phase::Failed(why) => Err((&ServeError::Load(why)).into()),
            Phase::NoMemory(why) => {
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).code("memory_full").retry(5))
            }
            Phase::Loading if slot.age() < load_timeout => {
                let seconds = slot.age().as_secs();
                Err(loading(format!(
                    "the model {:?} has been loading for {seconds} s: retry later",
                    slot.name
                )))
            }
            // until its thread notices
            Phase::Loading => Err((&ServeError::Load(self.too_long(slot))).into()),
        }
    }

    /// Why a load was ended.
    fn too_long(&self, slot: &Slot) -> String {
        format!("{}: loading takes longer than {} s", slot.name, self.keep.load_timeout.as_secs_f64())
    }

    /// Loads a model on this thread.
    fn load(&self, slot: &Slot) {
        let loaded = catch_unwind(AssertUnwindSafe(|| self.loaded(slot)));
        let phase = loaded.unwrap_or_else(|_| {
            Phase::Failed("loading the model panicked; see the panic message in the log".into())
        });
        let phase = match phase {
            Phase::Failed(_) if slot.age() >= self.keep.load_timeout => Phase::Failed(self.too_long(slot)),
            phase => phase,
        };
        if let Phase::Failed(why) = &phase {
            tracing::error!(model = %slot.name, %why, "the model could not be loaded");
        }
        slot.usage().used = Instant::now();
        slot.phase.send_replace(phase);
        if !slot.has_failed() {
            // with its KV cache it may take more than was reserved
            let _ = self.reserve(slot, slot.bytes());
        }
    }

    fn loaded(&self, slot: &Slot) -> Phase {
        let until = slot.deadline(self.keep.load_timeout);
        let open = || self.library.open(&slot.name, until);
        let CheckedLoad { bytes, start } = match open() {
            Ok(checked) => checked,
            Err(why) => return Phase::Failed(why),
        };
        if let Err(full) = self.reserve(slot, bytes) {
            return Phase::NoMemory(full);
        }
        let mut started = start();
        // other models may hold the memory: without the idle ones it may fit
        if started.as_ref().is_err_and(|error| error.is_memory) && self.drop_idle(usize::MAX, slot) {
            started = match open() {
                Ok(again) => (again.start)(),
                Err(why) => return Phase::Failed(why),
            };
        }
        match started {
            Ok(served) => Phase::Ready(Arc::new(served)),
            Err(error) => Phase::Failed(error.message),
        }
    }

    /// Reserves memory for a model. Idle models are dropped for it, least recently used first.
    fn reserve(&self, slot: &Slot, bytes: u64) -> std::result::Result<(), String> {
        loop {
            {
                let slots = self.slots();
                let others = slots.iter().filter(|other| !std::ptr::eq(&***other, slot));
                let held = others.map(|other| other.bytes()).fold(0, u64::saturating_add);
                let limit = self.keep.memory.unwrap_or(u64::MAX);
                if held == 0 || held.saturating_add(bytes) <= limit {
                    slot.reserve(bytes); // one model may always be loaded
                    return Ok(());
                }
                if !slots.iter().any(|other| other.is_idle() && !std::ptr::eq(&**other, slot)) {
                    return Err(format!(
                        "the models in use take {held} bytes, and {bytes} more exceed the limit of {limit}: retry later"
                    ));
                }
            }
            self.drop_idle(1, slot);
        }
    }

    /// Drops up to `count` idle models other than that of `slot`, least recently used first, and waits until
    /// their memory is free.
    fn drop_idle(&self, count: usize, slot: &Slot) -> bool {
        let gone = {
            let mut slots = self.slots();
            slots.sort_by_key(|slot| slot.usage().used);
            let mut left = count;
            let idle = |other: &Arc<Slot>| {
                let drops = left > 0 && other.is_idle() && !std::ptr::eq(&**other, slot);
                left -= usize::from(drops);
                drops
            };
            let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut *slots).into_iter().partition(idle);
            *slots = kept;
            gone
        };
        for slot in &gone {
            tracing::info!(model = %slot.name, "unloaded to free memory");
        }
        !gone.is_empty()
    }

    /// Unloads a model whose files are to be deleted; refuses one that is in use.
    pub(crate) fn release(&self, name: &str) -> Result<()> {
        let mut slots = self.slots();
        let Some(at) = slots.iter().position(|slot| slot.name == name) else { return Ok(()) };
        let busy = |what: &str, code| {
            let message = format!("the model {:?} is {what}: retry later", shortened(name));
            Err(ApiError::new(StatusCode::CONFLICT, message).code(code).retry(5))
        };
        if slots[at].is_loading() {
            return busy("being loaded", "loading");
        }
        if slots[at].running().is_some() && !slots[at].is_idle() {
            return busy("in use", "model_in_use");
        }
        drop_in_background(vec![slots.remove(at)]);
        Ok(())
    }
}
