//! How long models of a library stay loaded, and what their loads may take.

use std::time::Duration;

/// How models of a library are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepModels {
    /// How long an idle model stays loaded; none keeps it until its memory is needed.
    pub keep_alive: Option<Duration>,
    /// Maximum bytes of all loaded models; idle ones are dropped for a new one.
    pub memory: Option<u64>,
    /// How long a request waits for a model that is being loaded.
    pub load_wait: Duration,
    /// How long a load may take; one that takes longer is ended.
    pub load_timeout: Duration,
}

impl Default for KeepModels {
    fn default() -> KeepModels {
        let (load_wait, load_timeout) = (Duration::from_secs(60), Duration::from_secs(600));
        KeepModels { keep_alive: None, memory: None, load_wait, load_timeout }
    }
}
