//! What is known of a request for its log line, reported while it runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::http::auth::Key;

/// Added to the scheduling priority of the lines of a batch: lower is first.
const BATCH_PRIORITY: i32 = 1000;

/// Who sent a request.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    /// The API key, accepted or not.
    pub(crate) key: Key,
    /// It is a line of a batch: requests of connections are scheduled first, and it has no deadline.
    pub(crate) batch: bool,
}

impl Sender {
    /// A number for the client, by which the engine shares its work. The batches of a key are a separate
    /// client: requests of its connections preempt them.
    pub(crate) fn number(&self) -> u64 {
        if self.batch { !self.key.number() } else { self.key.number() }
    }

    /// The scheduling priority of a request that has this one itself.
    pub(crate) fn priority(&self, own: i32) -> i32 {
        if self.batch { own.saturating_add(BATCH_PRIORITY) } else { own }
    }
}

/// What a route reports about its request. Clones share their fields.
#[derive(Clone)]
pub(crate) struct RequestLog {
    pub(crate) start: Instant,
    pub(crate) sender: Sender,
    fields: Arc<Mutex<LogFields>>,
}

/// The fields of a log line that are known so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogFields {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) generated_tokens: usize,
    pub(crate) first_token: Option<Duration>,
    pub(crate) finish: Option<&'static str>,
    pub(crate) error: Option<String>,
}

impl RequestLog {
    pub(crate) fn new(sender: Sender) -> RequestLog {
        RequestLog { start: Instant::now(), sender, fields: Arc::default() }
    }

    /// When a request must end that may take this long.
    pub(crate) fn deadline(&self, limit: Option<Duration>) -> Option<Instant> {
        limit.filter(|_| !self.sender.batch).map(|limit| self.start + limit)
    }

    pub(crate) fn fields(&self) -> MutexGuard<'_, LogFields> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
