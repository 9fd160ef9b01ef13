//! The second pass over the input of a batch: requests in flight, and their results in order.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::check::BatchRules;
use super::error::BatchError;
use super::journal::Journal;
use super::line::BatchLine;
use super::lines::Lines;
use super::routes::{BatchRoutes, Reply};

/// Lines between the first unanswered one and the last one in flight, per line in flight.
const AHEAD: usize = 8;
/// Bytes of results that wait for an earlier line, above which no line is started.
const MAX_WAITING_BYTES: usize = 256 << 20;
/// The first and the last delay before a request that was refused for now is sent again.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// How long a server may refuse a request for now, except with a full queue, before that is its result.
const MAX_REFUSED: Duration = Duration::from_secs(1200);
/// Engines that one request may end before that is its result.
const MAX_ENGINES: usize = 3;

/// What of a batch is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Lines of the input.
    pub total: usize,
    /// Requests that succeeded.
    pub completed: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Prompt tokens of the requests of this run.
    pub prompt_tokens: u64,
    /// Tokens that they generated.
    pub generated_tokens: u64,
}

/// How a batch is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BatchStop {
    /// It is not.
    #[default]
    No,
    /// Requests in flight may finish.
    Draining,
    /// Requests in flight are cancelled, and run again if the batch continues.
    Now,
}

impl BatchCounts {
    /// Whether every line has a result.
    pub fn is_complete(&self) -> bool {
        self.completed + self.failed >= self.total
    }

    /// Adds the tokens of a reply.
    pub(super) fn count(&mut self, reply: &Reply) {
        /// Names of the chat and completion APIs, and of the responses API.
        #[derive(Default, Deserialize)]
        struct Usage {
            #[serde(alias = "input_tokens")]
            prompt_tokens: Option<u64>,
            #[serde(alias = "output_tokens")]
            completion_tokens: Option<u64>,
        }
        #[derive(Deserialize)]
        struct Body {
            usage: Option<Usage>,
        }
        let body = serde_json::from_slice::<Body>(&reply.body).ok();
        let usage = body.and_then(|body| body.usage).unwrap_or_default();
        self.prompt_tokens += usage.prompt_tokens.unwrap_or_default();
        self.generated_tokens += usage.completion_tokens.unwrap_or_default();
    }
}

/// A batch that is being answered.
pub(super) struct Run<'a, P> {
    pub(super) lines: Lines,
    pub(super) journal: &'a mut Journal,
    pub(super) total: usize,
    pub(super) rules: &'a BatchRules,
    pub(super) server: &'a BatchRoutes,
    pub(super) in_flight: usize,
    pub(super) stop: watch::Receiver<BatchStop>,
    pub(super) progress: P,
}

/// A line that is not written yet.
struct Pending {
    custom_id: String,
    reply: Option<Reply>,
}

/// Lines that were started and not written, the first in front.
#[derive(Default)]
struct Window {
    pending: VecDeque<Pending>,
    /// The number of the first.
    first: usize,
    /// Bytes of replies.
    bytes: usize,
}

impl<P: FnMut(BatchCounts)> Run<'_, P> {
    pub(super) async fn run(mut self) -> Result<BatchCounts, BatchError> {
        let (mut window, mut tasks, mut ended) = (Window::default(), JoinSet::new(), false);
        let in_flight = self.in_flight.max(1);
        loop {
            let stop = *self.stop.borrow_and_update();
            if stop == BatchStop::Now {
                break; // the tasks are cancelled
            }
            while stop == BatchStop::No
                && !ended
                && tasks.len() < in_flight
                && window.pending.len() < in_flight * AHEAD
                && window.bytes < MAX_WAITING_BYTES
            {
                match self.next()? {
                    None => ended = true,
                    Some(BatchLine { custom_id, url, body }) => {
                        let number = window.start(custom_id);
                        let (server, body) = (self.server.clone(), Value::Object(body).to_string().into());
                        tasks.spawn(async move { (number, answer(&server, url, body).await) });
                    }
                }
            }
            if tasks.is_empty() {
                break;
            }
            tokio::select! {
                Some(done) = tasks.join_next() => {
                    let (number, reply) = done.map_err(|error| BatchError::Engine(error.to_string()))?;
                    window.add(number, reply?);
                    self.write(&mut window)?;
                }
                changed = self.stop.changed() => {
                    if changed.is_err() {
                        break; // nothing can stop it any more
                    }
                }
            }
        }
        self.journal.sync()?;
        Ok(self.counts())
    }

    /// The next line without a result.
    fn next(&mut self) -> Result<Option<BatchLine>, BatchError> {
        while let Some(text) = self.lines.next()? {
            let line = BatchLine::parse(&text, self.rules);
            let line = line.map_err(|error| BatchError::changed(self.lines.file(), &error))?;
            if !self.journal.has(&line.custom_id) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// Writes the results in front.
    fn write(&mut self, window: &mut Window) -> Result<(), BatchError> {
        while let Some((custom_id, reply)) = window.take_first() {
            self.journal.add(&custom_id, &reply)?;
            let counts = self.counts();
            (self.progress)(counts);
        }
        Ok(())
    }

    fn counts(&self) -> BatchCounts {
        BatchCounts { total: self.total, ..self.journal.counts }
    }
}

impl Window {
    /// Adds a line and returns its number.
    fn start(&mut self, custom_id: String) -> usize {
        self.pending.push_back(Pending { custom_id, reply: None });
        self.first + self.pending.len() - 1
    }

    fn add(&mut self, number: usize, reply: Reply) {
        self.bytes += reply.body.len();
        if let Some(line) = self.pending.get_mut(number - self.first) {
            line.reply = Some(reply);
        }
    }

    /// The first line, if it has a reply.
    fn take_first(&mut self) -> Option<(String, Reply)> {
        self.pending.front()?.reply.as_ref()?;
        let Pending { custom_id, reply } = self.pending.pop_front()?;
        self.first += 1;
        reply.map(|reply| {
            self.bytes -= reply.body.len();
            (custom_id, reply)
        })
    }
}

/// What a reply says about the server, beyond the request.
enum Verdict {
    /// It is the result of the line.
    Final,
    /// The queue is full.
    Busy,
    /// Something else passes: a model is loading, a step is stuck.
    Refused,
    /// The engine has ended.
    Ended,
}

fn verdict(reply: &Reply) -> Verdict {
    #[derive(Deserialize)]
    struct Error {
        code: Option<String>,
    }
    #[derive(Deserialize)]
    struct Body {
        error: Error,
    }
    let code = || serde_json::from_slice::<Body>(&reply.body).ok().and_then(|body| body.error.code);
    match reply.status {
        429 => Verdict::Busy,
        500 | 503 => match code().as_deref() {
            Some("load_failed" | "device_lost" | "engine_stopped") => Verdict::Ended,
            _ if reply.status == 503 => Verdict::Refused,
            _ => Verdict::Final,
        },
        _ => Verdict::Final,
    }
}

/// Sends a request until its reply is the result of the line.
async fn answer(server: &BatchRoutes, url: &'static str, body: Bytes) -> Result<Reply, BatchError> {
    let (mut delay, mut refused, mut engines) = (RETRY.0, None, 0);
    loop {
        let reply = server.post(url, body.clone()).await;
        match verdict(&reply) {
            Verdict::Final => return Ok(reply),
            Verdict::Busy => refused = None,
            Verdict::Refused => {
                if refused.get_or_insert_with(Instant::now).elapsed() > MAX_REFUSED {
                    return Ok(reply);
                }
            }
            Verdict::Ended => {
                // the models of a library get another engine
                if server.has_ended() {
                    return Err(BatchError::Engine(message(&reply)));
                }
                engines += 1;
                if engines >= MAX_ENGINES {
                    return Ok(reply);
                }
            }
        }
        sleep(delay).await;
        delay = (delay * 2).min(RETRY.1);
    }
}

/// The message of an error.
fn message(reply: &Reply) -> String {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    body["error"]["message"].as_str().unwrap_or("the engine has ended").to_owned()
}
