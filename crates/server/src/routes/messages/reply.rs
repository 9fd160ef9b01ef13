//! A message under construction: its content blocks, and the events that stream them.

use serde::Serialize;
use serde_json::{Value, json};
use tern::text::Part;

use super::super::deliver::Shape;
use crate::generation::delta::Delta;
use crate::generation::usage::Usage;
use crate::http::error::ApiError;
use crate::http::error_shape::ErrorShape;
use crate::http::frames::Frames;
use crate::ids;

/// A message.
pub(in crate::routes) struct Reply {
    id: String,
    model: String,
    /// The request's stop sequences.
    stops: Vec<String>,
    blocks: Vec<Block>,
    /// The last block is not finished.
    open: bool,
    finish: Option<&'static str>,
    /// The stop sequence that was found.
    stop: Option<usize>,
}

/// A content block.
struct Block {
    kind: Kind,
    /// Its text, or the arguments of its call.
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Text,
    Thinking,
    Call { id: String, name: String },
}

impl Block {
    fn json(&self) -> Value {
        match &self.kind {
            Kind::Text => json!({"type": "text", "text": self.text}),
            Kind::Thinking => json!({"type": "thinking", "thinking": self.text, "signature": ""}),
            Kind::Call { id, name } => {
                // the input is an object; arguments that were cut off are not
                let input: Option<Value> = serde_json::from_str(&self.text).ok().filter(Value::is_object);
                json!({"type": "tool_use", "id": id, "name": name, "input": input.unwrap_or(json!({}))})
            }
        }
    }
}

impl Reply {
    pub(super) fn new(model: String, stops: Vec<String>) -> Reply {
        let id = ids::id("msg_");
        Reply { id, model, stops, blocks: vec![], open: false, finish: None, stop: None }
    }

    fn stop_reason(&self) -> Option<&'static str> {
        Some(match self.finish? {
            "length" => "max_tokens",
            "tool_calls" => "tool_use",
            _ if self.stop.is_some() => "stop_sequence",
            _ => "end_turn",
        })
    }

    fn stop_sequence(&self) -> Option<&str> {
        self.stop.and_then(|at| self.stops.get(at)).map(String::as_str)
    }

    fn message(&self, usage: Usage) -> Value {
        let content: Vec<Value> = self.blocks.iter().map(Block::json).collect();
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": self.stop_reason(), "stop_sequence": self.stop_sequence(), "usage": counts(usage),
        })
    }

    /// Adds a piece; its events go to `out`, if there is one.
    fn take(&mut self, delta: Delta, out: &mut Option<&mut Frames>) {
        for part in delta.parts {
            match part {
                Part::Content(text) => {
                    self.open(Kind::Text, out);
                    self.append(text, out);
                }
                Part::Reasoning(text) => {
                    self.open(Kind::Thinking, out);
                    self.append(text, out);
                }
                Part::CallBegin { name, .. } => {
                    self.open(Kind::Call { id: ids::call_id(), name }, out);
                }
                Part::CallArguments { text, .. } => self.append(text, out),
            }
        }
        if delta.finish.is_some() {
            self.finish = delta.finish;
            self.stop = delta.stop;
            self.close(out);
        }
    }

    fn open(&mut self, kind: Kind, out: &mut Option<&mut Frames>) {
        if self.open && self.blocks.last().is_some_and(|block| block.kind == kind) {
            return;
        }
        self.close(out);
        self.blocks.push(Block { kind, text: String::new() });
        self.open = true;
        if let (Some(out), Some(block)) = (out, self.blocks.last()) {
            let index = self.blocks.len() - 1;
            let data = json!({"type": "content_block_start", "index": index, "content_block": block.json()});
            out.event("content_block_start", &data);
        }
    }

    fn append(&mut self, text: String, out: &mut Option<&mut Frames>) {
        let index = self.blocks.len().saturating_sub(1);
        let Some(block) = self.blocks.last_mut() else { return };
        block.text.push_str(&text);
        let Some(out) = out else { return };
        let delta = match block.kind {
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
        };
        out.event(
            "content_block_delta",
            &json!({"type": "content_block_delta", "index": index, "delta": delta}),
        );
    }

    fn close(&mut self, out: &mut Option<&mut Frames>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let (Some(out), Some(block)) = (out, self.blocks.last()) else { return };
        let index = self.blocks.len() - 1;
        if block.kind == Kind::Thinking {
            let delta = json!({"type": "signature_delta", "signature": ""});
            let data = json!({"type": "content_block_delta", "index": index, "delta": delta});
            out.event("content_block_delta", &data);
        }
        out.event("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
    }
}

/// Cached tokens are not part of `input_tokens`.
fn counts(usage: Usage) -> Value {
    let cached = usage.prompt_tokens_details.cached_tokens;
    json!({
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    })
}

impl Shape for Reply {
    fn add(&mut self, _at: usize, delta: Delta) {
        self.take(delta, &mut None);
    }

    fn whole(&mut self, usage: Usage) -> impl Serialize {
        self.message(usage)
    }

    fn begin(&mut self, usage: Usage, out: &mut Frames) {
        out.event("message_start", &json!({"type": "message_start", "message": self.message(usage)}));
        out.event("ping", &json!({"type": "ping"}));
    }

    fn piece(&mut self, _at: usize, delta: Delta, _usage: Usage, out: &mut Frames) {
        self.take(delta, &mut Some(out));
    }

    fn end(&mut self, usage: Usage, out: &mut Frames) {
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": self.stop_sequence()});
        let data = json!({"type": "message_delta", "delta": delta, "usage": counts(usage)});
        out.event("message_delta", &data);
        out.event("message_stop", &json!({"type": "message_stop"}));
    }

    fn error(error: &ApiError, out: &mut Frames) {
        out.event("error", &ErrorShape::Anthropic.json(error));
    }
}
