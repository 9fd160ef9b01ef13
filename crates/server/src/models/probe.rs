//! The readiness probe: the engine completes a step of a request, or generates one token or
//! computes one vector as a test.

use std::time::Duration;

use tern::engine::{Event, Fault, Handle, Request};
use tokio::time::{Instant, sleep, timeout};

use crate::models::model::ServedModel;

/// Polling interval while waiting for the step in flight.
const POLL: Duration = Duration::from_millis(20);

/// When the engine last generated a test token.
#[derive(Default)]
pub(crate) struct Probe {
    tested_at: Option<Instant>,
}

impl Probe {
    /// Checks the engine. Only steps that complete from now on count: earlier ones may precede a stall. An
    /// idle engine generates a token, at most once per `interval`.
    pub(crate) async fn check(
        &mut self,
        served: &ServedModel,
        interval: Duration,
        deadline: Duration,
    ) -> Result<(), String> {
        let handle = served.model.handle();
        if handle.in_flight().is_some() {
            return step_completes(handle, deadline).await; // its requests are test enough
        }
        if self.tested_at.is_some_and(|at| at.elapsed() < interval) {
            return Ok(());
        }
        self.tested_at = None;
        generate_token(served, deadline).await?;
        self.tested_at = Some(Instant::now());
        Ok(())
    }
}

/// Waits until the step in flight completes; it may have begun long ago.
async fn step_completes(handle: &Handle, deadline: Duration) -> Result<(), String> {
    let Some(step) = handle.in_flight() else { return Ok(()) };
    while handle.in_flight().is_some_and(|now| now.since == step.since) {
        let age = step.age();
        if age >= deadline {
            return Err(late(age));
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Generates one token, or computes a vector, with the highest priority, so that the queue does not matter.
async fn generate_token(served: &ServedModel, deadline: Duration) -> Result<(), String> {
    let token = served.model.tokenizer().bos().unwrap_or(0);
    let request = match served.model.handle().generates() {
        true => Request::new(vec![token], 1),
        false => Request::embed(vec![token], served.model.pooling()),
    };
    let request = Request { priority: i32::MIN, ..request };
    let mut stream = match served.model.handle().generate(request) {
        Ok(stream) => stream,
        // requests arrived in the meantime
        Err(error) if error.fault() == Fault::Busy => {
            return step_completes(served.model.handle(), deadline).await;
        }
        Err(error) => return Err(error.to_string()),
    };
    let last = async {
        loop {
            match stream.next().await {
                Some(Event::Failed(error)) => return Err(error.to_string()),
                Some(Event::Started { .. }) => {}
                _ => return Ok(()),
            }
        }
    };
    timeout(deadline, last).await.unwrap_or_else(|_| Err(late(deadline)))
}

fn late(waited: Duration) -> String {
    format!("the engine has completed no step for {:.1} s", waited.as_secs_f64())
}
