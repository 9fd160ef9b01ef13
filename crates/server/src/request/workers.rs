//! How many requests are prepared at once.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Bodies up to this size have separate workers, so that they never wait for larger ones.
const SMALL_BODY: usize = 64 << 10;

/// Limits how many requests are prepared at once, because the work is CPU-bound.
pub(crate) struct Workers {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Workers {
    pub(crate) fn new() -> Workers {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let workers = |count: usize| Arc::new(Semaphore::new(count.max(1)));
        Workers { small: workers(cores), large: workers(cores / 2) }
    }

    pub(crate) fn for_body(&self, bytes: usize) -> &Arc<Semaphore> {
        if bytes <= SMALL_BODY { &self.small } else { &self.large }
    }
}
