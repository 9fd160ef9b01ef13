//! Failures of the whole server: loading failed, or the engine has ended or is stuck.

use std::time::Duration;

use axum::http::StatusCode;
use tern::engine::{EngineError, Handle, InFlight};

use crate::http::error::{ApiError, engine_code};

/// A step counts as stuck only after this multiple of its expected duration.
const STALL_FACTOR: u32 = 10;

/// Why a server ended before its shutdown. Only a new process can recover.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The model could not be loaded.
    #[error("the model could not be loaded: {0}")]
    Load(String),
    /// The engine lost its device, panicked or was shut down.
    #[error("{0}")]
    Engine(EngineError),
}

impl From<&ServeError> for ApiError {
    fn from(error: &ServeError) -> ApiError {
        let code = match error {
            ServeError::Load(_) => "load_failed",
            ServeError::Engine(why) => engine_code(why),
        };
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).code(code)
    }
}

/// Why an engine cannot serve requests: it has ended, or a step takes far too long.
pub(crate) fn fault(handle: &Handle, stall_timeout: Duration) -> Option<ApiError> {
    if let Some(why) = handle.ended() {
        return Some((&ServeError::Engine(why)).into());
    }
    let step = handle.in_flight()?;
    let (age, limit) = (step.age(), limit(&step, stall_timeout));
    (age > limit).then(|| {
        let (age, limit) = (age.as_secs_f64(), limit.as_secs_f64());
        let message = format!(
            "the engine is stuck: the current step has run for {age:.1} s, the limit is {limit:.1} s"
        );
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("engine_stuck").retry(5)
    })
}

/// The maximum duration of a step; it grows with the expected duration, so that a slow machine
/// does not count as stuck.
fn limit(step: &InFlight, stall_timeout: Duration) -> Duration {
    match step.expected {
        Some(expected) => expected.saturating_mul(STALL_FACTOR).max(stall_timeout),
        // the first step may read weights from disk, or compile
        None => stall_timeout.saturating_mul(STALL_FACTOR),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn slow_machines_and_first_steps_get_more_time() {
        let seconds = Duration::from_secs;
        let limit = |expected| limit(&InFlight { since: Instant::now(), expected }, seconds(120));
        assert_eq!(limit(Some(Duration::from_millis(5))), seconds(120));
        assert_eq!(limit(Some(seconds(90))), seconds(900));
        assert_eq!(limit(None), seconds(1200));
        assert_eq!(limit(Some(Duration::MAX)), Duration::MAX);
    }
}
