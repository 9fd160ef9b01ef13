//! A model of a server that is loaded, is being loaded, or could not be loaded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::models::model::ServedModel;

/// What is known of a model.
#[derive(Clone)]
pub(crate) enum Phase {
    Loading,
    Ready(Arc<ServedModel>),
    /// Why it could not be loaded.
    Failed(String),
    /// Models in use leave no memory for it: the text for the request that asked for it.
    NoMemory(String),
}

/// A place for one model.
pub(crate) struct Slot {
    /// Its name in the library; empty for the only model of a server.
    pub(crate) name: String,
    pub(crate) phase: watch::Sender<Phase>,
    /// When its load began.
    began: Instant,
    /// Bytes that it takes at least, from the moment at which they are reserved.
    reserved: AtomicU64,
    usage: Mutex<SlotUsage>,
}

/// When a model was used, and how long it stays loaded after that.
#[derive(Clone, Copy)]
pub(crate) struct SlotUsage {
    pub(crate) used: Instant,
    /// None: until its memory is needed.
    pub(crate) keep_alive: Option<Duration>,
}

impl Slot {
    pub(crate) fn new(name: String, keep_alive: Option<Duration>) -> Slot {
        let began = Instant::now();
        let usage = Mutex::new(SlotUsage { used: began, keep_alive });
        Slot { name, phase: watch::Sender::new(Phase::Loading), began, reserved: AtomicU64::new(0), usage }
    }

    /// Memory that it takes or has reserved; its weights are the least, also if its device is not known.
    pub(crate) fn bytes(&self) -> u64 {
        let reserved = self.reserved.load(Ordering::Relaxed);
        match &*self.phase.borrow() {
            Phase::Ready(served) => served.bytes().max(reserved),
            Phase::Loading => reserved,
            Phase::Failed(_) | Phase::NoMemory(_) => 0,
        }
    }

    pub(crate) fn reserve(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::Relaxed);
    }

    /// The loaded model.
    pub(crate) fn served(&self) -> Option<Arc<ServedModel>> {
        match &*self.phase.borrow() {
            Phase::Ready(served) => Some(Arc::clone(served)),
            _ => None,
        }
    }

    /// The loaded model, if its engine has not ended.
    pub(crate) fn running(&self) -> Option<Arc<ServedModel>> {
        self.served().filter(|served| served.model.handle().ended().is_none())
    }

    pub(crate) fn usage(&self) -> MutexGuard<'_, SlotUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_loading(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Loading)
    }

    /// When its load has taken `limit`; none if that is too far ahead.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Instant> {
        self.began.checked_add(limit)
    }

    /// How long it has been loading.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether it is loaded and no request holds it.
    pub(crate) fn is_idle(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Ready(served) => Arc::strong_count(served) == 1,
            _ => false,
        }
    }

    /// Whether it can serve no request any more.
    pub(crate) fn has_failed(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Ready(served) => served.model.handle().ended().is_some(),
            Phase::Loading => false,
            Phase::Failed(_) | Phase::NoMemory(_) => true,
        }
    }
}

/// Drops models on a blocking thread, because the end of an engine waits for its step;
/// returns whether there were any.
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
