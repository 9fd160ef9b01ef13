//! What is known of a request for its log line, reported while it runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::http::auth::Key;

/// What a route reports about its request. Clones share their fields.
#[derive(Clone)]
pub(crate) struct RequestLog {
    pub(crate) start: Instant,
    /// The client's API key.
    pub(crate) key: Key,
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
    pub(crate) fn new(key: Key) -> RequestLog {
        RequestLog { start: Instant::now(), key, fields: Arc::default() }
    }

    pub(crate) fn fields(&self) -> MutexGuard<'_, LogFields> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
