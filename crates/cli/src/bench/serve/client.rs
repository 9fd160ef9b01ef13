//! A blocking client of the OpenAI API, which notes when each token of a stream arrives.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::Value;
use tern::formats::shown;

use super::events::{Chunk, Lines, Usage};
use crate::error::{CliError, CliResult};

/// Time limit of a connection's start, TLS included.
const CONNECT: Duration = Duration::from_secs(20);
/// Maximum size of a response that is not a stream.
const MAX_BYTES: u64 = 1 << 20;
/// The status of a server whose model is loading.
const NOT_READY: u16 = 503;
/// Time between two checks of such a server.
const BETWEEN_CHECKS: Duration = Duration::from_millis(250);
/// Bytes per read; an event has a few hundred.
const READ: usize = 16 << 10;

/// A server and how it is reached; threads share it.
pub(crate) struct Client {
    agent: ureq::Agent,
    base: String,
    authorization: Option<String>,
}

/// A stream that ended well: times are since the request was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reply {
    /// Seconds until the first token.
    pub(crate) first: f64,
    /// Seconds between events with tokens.
    pub(crate) gaps: Vec<f32>,
    /// Seconds until the last token.
    pub(crate) last: f64,
    /// None if the server does not report it.
    pub(crate) usage: Option<Usage>,
}

impl Reply {
    /// Generated tokens; without a count of the server, one per event.
    pub(crate) fn tokens(&self) -> u64 {
        self.usage.map_or(self.gaps.len() as u64 + 1, |usage| usage.completion_tokens)
    }

    /// Tokens of the prompt; 0 if the server does not count.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.usage.map_or(0, |usage| usage.prompt_tokens)
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestError {
    /// The HTTP status, if it is not 200.
    pub(crate) status: Option<u16>,
    pub(crate) message: String,
}

impl RequestError {
    fn of(error: &dyn std::fmt::Display) -> RequestError {
        RequestError { status: None, message: error.to_string() }
    }
}

impl Client {
    /// A client for up to `streams` requests at once.
    pub(crate) fn new(base: &str, key: Option<&str>, timeout: Duration, streams: usize) -> Client {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .timeout_connect(Some(CONNECT))
            .http_status_as_error(false)
            .max_idle_connections(streams)
            .max_idle_connections_per_host(streams)
            .user_agent("tern-bench");
        let authorization = key.map(|key| format!("Bearer {key}"));
        Client { agent: config.build().into(), base: base.to_string(), authorization }
    }

    /// Waits for at most `limit` while the server answers that it is not ready;
    /// `waiting` gets its message, once.
    pub(crate) fn wait_until_ready(&self, limit: Duration, waiting: impl FnOnce(&str)) {
        let (begin, mut waiting) = (Instant::now(), Some(waiting));
        // whatever else is wrong, the first request reports it
        while let Ok((status @ NOT_READY, text)) = self.models() {
            if begin.elapsed() > limit {
                return;
            }
            if let Some(waiting) = waiting.take() {
                waiting(&error_message(status, &text));
            }
            std::thread::sleep(BETWEEN_CHECKS);
        }
    }

    /// Status and body of the list of models.
    fn models(&self) -> CliResult<(u16, String)> {
        let url = self.models_url();
        let failed = |why: &dyn std::fmt::Display| CliError::message(format!("{url}: {why}"));
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.authorization {
            request = request.header("authorization", key);
        }
        let mut answer = request.call().map_err(|e| failed(&e))?;
        let text = answer.body_mut().with_config().limit(MAX_BYTES).read_to_string();
        Ok((answer.status().as_u16(), text.map_err(|e| failed(&e))?))
    }

    fn models_url(&self) -> String {
        format!("{}/v1/models", self.base)
    }

    /// The first model of the server.
    pub(crate) fn first_model(&self) -> CliResult<String> {
        let failed = |why: &dyn std::fmt::Display| CliError::message(format!("{}: {why}", self.models_url()));
        let (status, text) = self.models()?;
        if status != 200 {
            return Err(failed(&error_message(status, &text)));
        }
        let models: Value = serde_json::from_str(&text).map_err(|e| failed(&e))?;
        let name = models["data"][0]["id"].as_str();
        name.map(str::to_string).ok_or_else(|| failed(&"no model in the response; name one with --model"))
    }

    /// Sends a request for a stream and reads it to its end. `tokens` is the expected number of events.
    pub(crate) fn stream(&self, path: &str, body: &str, tokens: usize) -> Result<Reply, RequestError> {
        let mut request = self.agent.post(format!("{}{path}", self.base));
        request = request.header("content-type", "application/json");
        if let Some(key) = &self.authorization {
            request = request.header("authorization", key);
        }
        let mut timing = Timing::start(tokens);
        let mut answer = request.send(body).map_err(|e| RequestError::of(&e))?;
        if answer.status() != 200 {
            let status = answer.status().as_u16();
            let text = answer.body_mut().with_config().limit(MAX_BYTES).read_to_string();
            let message = error_message(status, &text.unwrap_or_default());
            return Err(RequestError { status: Some(status), message });
        }
        let (mut reader, mut lines) = (answer.body_mut().as_reader(), Lines::default());
        let mut buffer = [0; READ];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return timing.end(),
                Ok(read) => {
                    let now = Instant::now();
                    lines.read(&buffer[..read], |data| timing.event(data, now))?;
                }
                Err(e) => return Err(RequestError::of(&e)),
            }
            if lines.is_too_long() {
                return Err(RequestError::of(&"an event is too long"));
            }
        }
    }
}

/// The times of a stream's tokens.
struct Timing {
    sent: Instant,
    last: Option<Instant>,
    /// The event with the finish reason.
    finish: Option<Instant>,
    ended: bool,
    reply: Reply,
}

impl Timing {
    fn start(tokens: usize) -> Timing {
        // prepared before the clock starts
        let reply = Reply { gaps: Vec::with_capacity(tokens.min(1 << 16)), ..Reply::default() };
        Timing { sent: Instant::now(), last: None, finish: None, ended: false, reply }
    }

    fn event(&mut self, data: &[u8], now: Instant) -> Result<(), RequestError> {
        if data == b"[DONE]" {
            self.ended = true;
            return Ok(());
        }
        let chunk: Chunk =
            serde_json::from_slice(data).map_err(|e| RequestError::of(&format!("an event: {e}")))?;
        if let Some(error) = &chunk.error {
            return Err(RequestError { status: None, message: error_text(error) });
        }
        if chunk.has_token() {
            match self.last {
                None => self.reply.first = (now - self.sent).as_secs_f64(),
                Some(last) => self.reply.gaps.push((now - last).as_secs_f32()),
            }
            self.last = Some(now);
            self.reply.last = (now - self.sent).as_secs_f64();
        }
        if chunk.is_finish() {
            self.ended = true;
            self.finish = Some(now);
        }
        self.reply.usage = chunk.usage.or(self.reply.usage);
        Ok(())
    }

    fn end(self) -> Result<Reply, RequestError> {
        let Timing { sent, last, finish, ended, reply } = self;
        if !ended {
            return Err(RequestError::of(&"the stream ended without a finish reason and without [DONE]"));
        }
        match (last, finish) {
            (Some(_), _) => Ok(reply),
            // all tokens have no text: their time is that of the last event
            (None, Some(at)) if reply.usage.is_some_and(|usage| usage.completion_tokens > 0) => {
                let seconds = (at - sent).as_secs_f64();
                Ok(Reply { first: seconds, last: seconds, ..reply })
            }
            _ => Err(RequestError::of(&"the stream has no tokens")),
        }
    }
}

/// One sentence about a response with an error status.
fn error_message(status: u16, body: &str) -> String {
    let text = match serde_json::from_str::<Value>(body) {
        Ok(Value::Object(object)) => match object.get("error") {
            Some(error) => error_text(error),
            None => error_text(&Value::Object(object)),
        },
        _ => shown(body.trim()).to_string(),
    };
    format!("HTTP {status}: {text}")
}

/// The message of an error: a string, or an object with a message (or, in FastAPI's servers, with a detail).
fn error_text(error: &Value) -> String {
    let text = [error, &error["message"], &error["detail"]].into_iter().find_map(Value::as_str);
    text.map_or_else(|| shown(&error.to_string()).to_string(), |text| shown(text).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(events: &[(&str, u64)]) -> Result<Reply, RequestError> {
        let mut timing = Timing::start(4);
        for (event, millis) in events {
            timing.event(event.as_bytes(), timing.sent + Duration::from_millis(*millis))?;
        }
        timing.end()
    }

    #[test]
    fn times_are_those_of_events_with_tokens() {
        let role = r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
        let token = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
        let finish = r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#;
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3}}"#;
        let events =
            [(role, 1), (token, 10), (token, 14), (token, 20), (finish, 30), (usage, 31), ("[DONE]", 31)];
        let reply = timing(&events).unwrap();
        assert_eq!((reply.first, reply.last, reply.gaps), (0.01, 0.02, vec![0.004, 0.006]));
        assert_eq!(reply.usage, Some(Usage { prompt_tokens: 8, completion_tokens: 3 }));

        let reply = timing(&[(role, 1), (finish, 30), (usage, 31)]).unwrap();
        assert_eq!((reply.first, reply.last, reply.tokens()), (0.03, 0.03, 3), "tokens without text");

        let message = |events: &[(&str, u64)]| timing(events).unwrap_err().message;
        assert!(message(&[(token, 1)]).contains("without a finish reason"));
        assert_eq!(message(&[(role, 1), ("[DONE]", 2)]), "the stream has no tokens");
        assert_eq!(message(&[(token, 1), (r#"{"error":{"message":"lost"}}"#, 2)]), "lost");
        assert!(message(&[("{", 1)]).starts_with("an event: EOF"));
    }

    #[test]
    fn errors_of_servers_become_one_sentence() {
        for (body, want) in [
            (r#"{"error":{"message":"too long","type":"x"}}"#, "HTTP 400: too long"),
            (r#"{"error":"too long"}"#, "HTTP 400: too long"),
            (r#"{"object":"error","message":"too long"}"#, "HTTP 400: too long"),
            (r#"{"detail":"too long"}"#, "HTTP 400: too long"),
            (r#"{"detail":[1]}"#, r#"HTTP 400: {"detail":[1]}"#),
            ("too long\n", "HTTP 400: too long"),
        ] {
            assert_eq!(error_message(400, body), want);
        }
    }
}
