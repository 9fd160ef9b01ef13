//! Whether the engine moves: it takes steps for somebody, or it generates one token to prove it.

use std::time::Duration;

use tern_engine::{Event, Fault, Request, TokenStream};
use tokio::time::{Instant, sleep, timeout};

use crate::model::Served;

/// How often the count of steps is looked at while waiting.
const LOOK: Duration = Duration::from_millis(20);

/// What was seen at the last look.
#[derive(Default)]
pub(crate) struct Probe {
    last: Option<(Instant, Result<(), String>)>,
    steps: u64,
}

impl Probe {
    /// Looks at the engine, at most every `interval`; in between the last result stands.
    pub(crate) async fn look(
        &mut self,
        served: &Served,
        interval: Duration,
        deadline: Duration,
    ) -> Result<(), String> {
        if let Some((at, result)) = &self.last
            && at.elapsed() < interval
        {
            return result.clone();
        }
        let stats = served.model.handle.stats();
        let busy = stats.running + stats.waiting > 0;
        let result = match busy && stats.steps > self.steps {
            true => Ok(()), // others are being served: no need to disturb them
            false => moves(served, deadline).await,
        };
        self.steps = served.model.handle.stats().steps;
        self.last = Some((Instant::now(), result.clone()));
        result
    }
}

/// Waits for a step, and asks for a token so that there is a reason for one.
async fn moves(served: &Served, deadline: Duration) -> Result<(), String> {
    let handle = &served.model.handle;
    let before = handle.stats().steps;
    let token = served.model.tokenizer.bos().unwrap_or(0);
    // ahead of everybody: the answer is about the engine, not about its queue
    let request = Request { priority: i32::MIN, ..Request::new(vec![token], 1) };
    let mut stream = match handle.generate(request) {
        Ok(stream) => Some(stream),
        // a full queue gives the engine reason enough to take a step
        Err(error) if error.fault() == Fault::Busy => None,
        Err(error) => return Err(error.to_string()),
    };
    let stepped = async {
        while handle.stats().steps == before {
            if let Some(Event::Failed(error)) = soon(&mut stream).await {
                return Err(error.to_string());
            }
        }
        Ok(())
    };
    let late = || Err(format!("the engine took no step in {} s", deadline.as_secs_f64()));
    timeout(deadline, stepped).await.unwrap_or_else(|_| late())
}

/// The next event, if it comes soon.
async fn soon(stream: &mut Option<TokenStream>) -> Option<Event> {
    match stream {
        Some(events) => match timeout(LOOK, events.next()).await {
            Ok(None) => {
                *stream = None; // over: from here on only the steps tell
                None
            }
            event => event.ok().flatten(),
        },
        None => {
            sleep(LOOK).await;
            None
        }
    }
}
