//! Whether the engine moves: it takes steps for somebody, or it generates one token to prove it.

use std::time::Duration;

use tern::engine::{Event, Fault, Handle, Request};
use tokio::time::{Instant, sleep, timeout};

use crate::model::ServedModel;

/// How often the step in flight is looked at while waiting for its end.
const LOOK: Duration = Duration::from_millis(20);

/// When the engine last generated a token to prove that it moves.
#[derive(Default)]
pub(crate) struct Probe {
    proved: Option<Instant>,
}

impl Probe {
    /// Looks at the engine. Only what happens from now on counts: steps that were taken since the last look may be
    /// older than the standstill. An idle engine is asked for a token, at most every `interval`.
    pub(crate) async fn look(
        &mut self,
        served: &ServedModel,
        interval: Duration,
        deadline: Duration,
    ) -> Result<(), String> {
        let handle = served.model.handle();
        if handle.in_flight().is_some() {
            return moves(handle, deadline).await; // others are being served: no need to disturb them
        }
        if self.proved.is_some_and(|at| at.elapsed() < interval) {
            return Ok(());
        }
        self.proved = None;
        speaks(served, deadline).await?;
        self.proved = Some(Instant::now());
        Ok(())
    }
}

/// Waits for the end of the step in flight, which may have begun long ago.
async fn moves(handle: &Handle, deadline: Duration) -> Result<(), String> {
    let Some(step) = handle.in_flight() else { return Ok(()) };
    while handle.in_flight().is_some_and(|now| now.since == step.since) {
        let age = step.age();
        if age >= deadline {
            return Err(late(age));
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Asks for a token, ahead of everybody: the answer is about the engine, not about its queue.
async fn speaks(served: &ServedModel, deadline: Duration) -> Result<(), String> {
    let token = served.model.tokenizer().bos().unwrap_or(0);
    let request = Request { priority: i32::MIN, ..Request::new(vec![token], 1) };
    let mut stream = match served.model.handle().generate(request) {
        Ok(stream) => stream,
        // others came meanwhile
        Err(error) if error.fault() == Fault::Busy => return moves(served.model.handle(), deadline).await,
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
