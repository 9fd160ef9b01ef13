//! Replies of Ollama's API: one line per piece, and the durations at the end.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};
use tern::text::Part;

use super::super::deliver::Shape;
use crate::clock::rfc3339;
use crate::generation::delta::{Delta, TokenLogprob};
use crate::generation::usage::Usage;
use crate::http::error::ApiError;
use crate::http::error_shape::ErrorShape;
use crate::http::frames::{Frames, Framing};
use crate::request::json::decimal;

/// Whether a reply is a message or a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Chat,
    Generate,
}

/// A reply under construction.
pub(super) struct Reply {
    form: Form,
    model: String,
    logprobs: bool,
    start: Instant,
    first: Option<Instant>,
    /// All pieces together, if the reply is not streamed.
    sum: Piece,
    /// The call whose arguments are not complete.
    call: Option<Call>,
    finish: Option<&'static str>,
}

/// What a line contains.
#[derive(Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<Call>,
    logprobs: Vec<TokenLogprob>,
}

struct Call {
    name: String,
    arguments: String,
}

impl Call {
    fn json(&self) -> Value {
        // the arguments are an object; those that were cut off are not
        let arguments: Option<Value> = serde_json::from_str(&self.arguments).ok().filter(Value::is_object);
        json!({"function": {"name": self.name, "arguments": arguments.unwrap_or(json!({}))}})
    }
}

impl Piece {
    fn is_empty(&self) -> bool {
        self.content.is_empty()
            && self.thinking.is_empty()
            && self.calls.is_empty()
            && self.logprobs.is_empty()
    }

    fn append(&mut self, more: Piece) {
        self.content.push_str(&more.content);
        self.thinking.push_str(&more.thinking);
        self.calls.extend(more.calls);
        self.logprobs.extend(more.logprobs);
    }
}

/// The current time.
pub(super) fn created_at() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(now.as_secs(), now.subsec_nanos())
}

impl Reply {
    pub(super) fn new(form: Form, model: String, logprobs: bool) -> Reply {
        let (start, first) = (Instant::now(), None);
        Reply { form, model, logprobs, start, first, sum: Piece::default(), call: None, finish: None }
    }

    /// What a delta adds. A call is added when its arguments are complete.
    fn take(&mut self, delta: Delta) -> Piece {
        self.first.get_or_insert_with(Instant::now);
        let mut piece = Piece::default();
        for part in delta.parts {
            match part {
                Part::Content(text) => piece.content.push_str(&text),
                Part::Reasoning(text) => piece.thinking.push_str(&text),
                Part::CallBegin { name, .. } => {
                    piece.calls.extend(self.call.replace(Call { name, arguments: String::new() }));
                }
                Part::CallArguments { text, .. } => {
                    if let Some(call) = &mut self.call {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        piece.logprobs.extend(delta.logprobs.filter(|_| self.logprobs));
        if delta.finish.is_some() {
            self.finish = delta.finish;
            piece.calls.extend(self.call.take());
        }
        piece
    }

    fn line(&self, piece: &Piece) -> Value {
        let mut line = json!({"model": self.model, "created_at": created_at(), "done": false});
        match self.form {
            Form::Chat => {
                let mut message = json!({"role": "assistant", "content": piece.content});
                if !piece.thinking.is_empty() {
                    message["thinking"] = piece.thinking.as_str().into();
                }
                if !piece.calls.is_empty() {
                    message["tool_calls"] = piece.calls.iter().map(Call::json).collect();
                }
                line["message"] = message;
            }
            Form::Generate => {
                line["response"] = piece.content.as_str().into();
                if !piece.thinking.is_empty() {
                    line["thinking"] = piece.thinking.as_str().into();
                }
            }
        }
        if !piece.logprobs.is_empty() {
            line["logprobs"] = piece.logprobs.iter().map(logprob).collect();
        }
        line
    }

    fn last(&self, piece: &Piece, usage: Usage) -> Value {
        let mut line = self.line(piece);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let total = self.start.elapsed();
        let prompt = self.first.map_or(total, |first| first - self.start);
        let fields = [
            ("done", json!(true)),
            ("done_reason", json!(if self.finish == Some("length") { "length" } else { "stop" })),
            ("total_duration", json!(nanoseconds(total))),
            ("load_duration", json!(0)),
            ("prompt_eval_count", json!(usage.prompt_tokens)),
            ("prompt_eval_duration", json!(nanoseconds(prompt))),
            ("eval_count", json!(usage.completion_tokens)),
            ("eval_duration", json!(nanoseconds(total - prompt))),
        ];
        for (name, value) in fields {
            line[name] = value;
        }
        line
    }
}

fn logprob(token: &TokenLogprob) -> Value {
    let one = |token: &crate::generation::delta::Logprob| json!({"token": token.token, "logprob": decimal(token.logprob)});
    let mut out = one(&token.token);
    out["top_logprobs"] = token.top_logprobs.iter().map(one).collect();
    out
}

impl Shape for Reply {
    const FRAMING: Framing = Framing::Lines;

    fn add(&mut self, _at: usize, delta: Delta) {
        let piece = self.take(delta);
        self.sum.append(piece);
    }

    fn whole(&mut self, usage: Usage) -> impl Serialize {
        self.last(&self.sum, usage)
    }

    fn piece(&mut self, _at: usize, delta: Delta, _usage: Usage, out: &mut Frames) {
        let piece = self.take(delta);
        if !piece.is_empty() {
            out.line(&self.line(&piece));
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Frames) {
        out.line(&self.last(&Piece::default(), usage));
    }

    fn error(error: &ApiError, out: &mut Frames) {
        out.line(&ErrorShape::Ollama.json(error));
    }
}
