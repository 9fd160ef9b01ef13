//! A response under construction: its items, and the events that stream them.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tern::text::Part;

use super::super::deliver::Shape;
use super::input::encoded;
use crate::generation::delta::{Delta, Logprob, TokenLogprob};
use crate::generation::usage::Usage;
use crate::http::error::ApiError;
use crate::http::frames::Frames;
use crate::ids;
use crate::request::json::decimal;
use crate::request::prompt::now;
use crate::response_store::{KeyResponses, StoredResponse};

/// The items that precede a response's output.
pub(super) struct Conversation {
    pub(super) items: Vec<Value>,
    /// How many of them are input.
    pub(super) inputs: usize,
}

/// What a reply contains.
pub(super) struct ReplyOptions {
    pub(super) logprobs: bool,
    /// Reasoning is also encoded for clients that keep no text of it.
    pub(super) encrypted: bool,
    /// The names of free-form tools.
    pub(super) custom: Vec<String>,
    /// Where the response is stored, and what precedes it.
    pub(super) store: Option<(KeyResponses, Conversation)>,
}

/// A response.
pub(in crate::routes) struct Reply {
    id: String,
    created_at: u64,
    /// The fields that repeat the request.
    fields: Map<String, Value>,
    options: ReplyOptions,
    items: Vec<Item>,
    sequence: u64,
    finish: Option<&'static str>,
}

/// An item of the output. Only the last one may be open.
struct Item {
    id: String,
    kind: Kind,
    /// Its text, or the arguments of its call.
    text: String,
    logprobs: Vec<TokenLogprob>,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Message,
    Reasoning,
    Call {
        call_id: String,
        name: String,
    },
    /// A call of a free-form tool.
    Custom {
        call_id: String,
        name: String,
    },
}

impl Item {
    fn new(kind: Kind) -> Item {
        let prefix = match kind {
            Kind::Message => "msg_",
            Kind::Reasoning => "rs_",
            Kind::Call { .. } => "fc_",
            Kind::Custom { .. } => "ctc_",
        };
        let (text, logprobs) = (String::new(), vec![]);
        Item { id: ids::id(prefix), kind, text, logprobs, status: "in_progress" }
    }

    /// The part of its content, if it has content.
    fn part(&self, logprobs: bool) -> Option<Value> {
        match self.kind {
            Kind::Message => {
                let logprobs = if logprobs { json!(self.logprobs) } else { json!([]) };
                Some(
                    json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}),
                )
            }
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": self.text})),
            Kind::Call { .. } | Kind::Custom { .. } => None,
        }
    }

    fn json(&self, options: &ReplyOptions) -> Value {
        let Item { id, status, .. } = self;
        let begun = *status != "in_progress";
        let content: Vec<Value> = self.part(options.logprobs).filter(|_| begun).into_iter().collect();
        match &self.kind {
            Kind::Message => {
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Kind::Reasoning => {
                let mut item = json!({"type": "reasoning", "id": id, "summary": [], "content": content});
                if options.encrypted {
                    item["encrypted_content"] = encoded(&self.text).into();
                }
                item
            }
            Kind::Call { call_id, name } => json!({
                "type": "function_call", "id": id, "status": status, "call_id": call_id, "name": name,
                "arguments": if begun { self.text.as_str() } else { "" },
            }),
            Kind::Custom { call_id, name } => json!({
                "type": "custom_tool_call", "id": id, "call_id": call_id, "name": name,
                "input": if begun { self.input() } else { String::new() },
            }),
        }
    }

    /// The text of a free-form call; arguments that were cut off are returned as they are.
    fn input(&self) -> String {
        let arguments: Option<Value> = serde_json::from_str(&self.text).ok();
        let input = arguments.as_ref().and_then(|arguments| arguments["input"].as_str());
        input.unwrap_or(&self.text).to_owned()
    }
}

impl Reply {
    pub(super) fn new(fields: Map<String, Value>, options: ReplyOptions) -> Reply {
        let id = ids::id("resp_");
        Reply { id, created_at: now(), fields, options, items: vec![], sequence: 0, finish: None }
    }

    /// The response with a status.
    fn response(&self, status: &str, usage: Option<Usage>) -> Value {
        let output: Vec<Value> = self.items.iter().map(|item| item.json(&self.options)).collect();
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created_at, "status": status,
            "background": false, "completed_at": null, "error": null, "incomplete_details": null,
            "max_tool_calls": null, "service_tier": "default", "output": output, "usage": null,
        });
        if let Some(object) = response.as_object_mut() {
            object.extend(self.fields.clone());
        }
        if status == "completed" {
            response["completed_at"] = now().into();
        }
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        if let Some(usage) = usage {
            let cached_tokens = usage.prompt_tokens_details.cached_tokens;
            let reasoning_tokens = usage.completion_tokens_details.reasoning_tokens;
            response["usage"] = json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
                "total_tokens": usage.total_tokens,
            });
        }
        response
    }

    /// The status of the last item, and of the response.
    fn status(&self) -> &'static str {
        if self.finish == Some("length") { "incomplete" } else { "completed" }
    }

    /// The finished response, which is stored.
    fn finished(&mut self, usage: Usage) -> Value {
        let response = self.response(self.status(), Some(usage));
        if let Some((store, Conversation { mut items, inputs })) = self.options.store.take() {
            items.extend(self.items.iter().map(|item| item.json(&self.options)));
            store.insert(&self.id, StoredResponse { response: response.clone(), items, inputs });
        }
        response
    }

    /// Adds a piece; its events go to `out`, if there is one.
    fn take(&mut self, delta: Delta, out: &mut Option<&mut Frames>) {
        let mut logprobs = delta.logprobs;
        for part in delta.parts {
            match part {
                Part::Content(text) => {
                    self.open(Kind::Message, out);
                    let logprobs = logprobs.take().filter(|_| self.options.logprobs);
                    let listed: Vec<Value> = logprobs.iter().map(event_logprob).collect();
                    let event = json!({"content_index": 0, "delta": text, "logprobs": listed});
                    self.event("response.output_text.delta", event, out);
                    self.append(&text, logprobs);
                }
                Part::Reasoning(text) => {
                    self.open(Kind::Reasoning, out);
                    let event = json!({"content_index": 0, "delta": text});
                    self.event("response.reasoning_text.delta", event, out);
                    self.append(&text, None);
                }
                Part::CallBegin { name, .. } => {
                    let call_id = ids::call_id();
                    let kind = match self.options.custom.contains(&name) {
                        true => Kind::Custom { call_id, name },
                        false => Kind::Call { call_id, name },
                    };
                    self.open(kind, out);
                }
                Part::CallArguments { text, .. } => {
                    // the arguments of a free-form call are JSON around its text, which is known at the end
                    if self.items.last().is_some_and(|item| matches!(item.kind, Kind::Call { .. })) {
                        let event = json!({"delta": text});
                        self.event("response.function_call_arguments.delta", event, out);
                    }
                    self.append(&text, None);
                }
            }
        }
        if delta.finish.is_some() {
            self.finish = delta.finish;
            if self.items.is_empty() {
                self.open(Kind::Message, out); // clients expect a message
            }
            self.close(self.status(), out);
        }
    }

    fn append(&mut self, text: &str, logprobs: Option<TokenLogprob>) {
        if let Some(item) = self.items.last_mut() {
            item.text.push_str(text);
            item.logprobs.extend(logprobs);
        }
    }

    /// Opens an item unless text of its kind continues.
    fn open(&mut self, kind: Kind, out: &mut Option<&mut Frames>) {
        let is_text = matches!(kind, Kind::Message | Kind::Reasoning);
        if is_text && self.items.last().is_some_and(|item| item.kind == kind && item.status == "in_progress")
        {
            return;
        }
        self.close("completed", out);
        self.items.push(Item::new(kind));
        let Some(item) = self.items.last() else { return };
        let (json, part) = (item.json(&self.options), item.part(self.options.logprobs));
        self.event("response.output_item.added", json!({"item": json}), out);
        if let Some(part) = part {
            self.event("response.content_part.added", json!({"content_index": 0, "part": part}), out);
        }
    }

    fn close(&mut self, status: &'static str, out: &mut Option<&mut Frames>) {
        let Some(item) = self.items.last_mut().filter(|item| item.status == "in_progress") else { return };
        item.status = status;
        let (json, part) = (item.json(&self.options), item.part(self.options.logprobs));
        match &item.kind {
            Kind::Message => {
                let logprobs: Vec<Value> = item.logprobs.iter().map(event_logprob).collect();
                let event = json!({"content_index": 0, "text": item.text, "logprobs": logprobs});
                self.event("response.output_text.done", event, out);
            }
            Kind::Reasoning => {
                let event = json!({"content_index": 0, "text": item.text});
                self.event("response.reasoning_text.done", event, out);
            }
            Kind::Call { name, .. } => {
                let event = json!({"name": name, "arguments": item.text});
                self.event("response.function_call_arguments.done", event, out);
            }
            Kind::Custom { .. } => {
                let input = item.input();
                self.event("response.custom_tool_call_input.delta", json!({"delta": input}), out);
                self.event("response.custom_tool_call_input.done", json!({"input": input}), out);
            }
        }
        if let Some(part) = part {
            self.event("response.content_part.done", json!({"content_index": 0, "part": part}), out);
        }
        self.event("response.output_item.done", json!({"item": json}), out);
    }

    /// Sends an event about the last item.
    fn event(&mut self, kind: &str, mut data: Value, out: &mut Option<&mut Frames>) {
        let Some(out) = out else { return };
        data["output_index"] = self.items.len().saturating_sub(1).into();
        // the events that contain an item do not repeat its id
        if let Some(item) = self.items.last().filter(|_| data["item"].is_null()) {
            data["item_id"] = item.id.as_str().into();
        }
        self.send(kind, data, out);
    }

    fn send(&mut self, kind: &str, mut data: Value, out: &mut Frames) {
        data["type"] = kind.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        out.event(kind, &data);
    }
}

/// A log-probability in an event, which has no bytes.
fn event_logprob(token: &TokenLogprob) -> Value {
    let one = |token: &Logprob| json!({"token": token.token, "logprob": decimal(token.logprob)});
    let mut out = one(&token.token);
    out["top_logprobs"] = token.top_logprobs.iter().map(one).collect();
    out
}

impl Shape for Reply {
    fn add(&mut self, _at: usize, delta: Delta) {
        self.take(delta, &mut None);
    }

    fn whole(&mut self, usage: Usage) -> impl Serialize {
        self.finished(usage)
    }

    fn begin(&mut self, _usage: Usage, out: &mut Frames) {
        let response = self.response("in_progress", None);
        self.send("response.created", json!({"response": response}), out);
        self.send("response.in_progress", json!({"response": response}), out);
    }

    fn piece(&mut self, _at: usize, delta: Delta, _usage: Usage, out: &mut Frames) {
        self.take(delta, &mut Some(out));
    }

    fn end(&mut self, usage: Usage, out: &mut Frames) {
        let response = self.finished(usage);
        let kind = if self.status() == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.send(kind, json!({"response": response}), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        let mut response = self.response("failed", None);
        response["error"] = json!({"code": "server_error", "message": error.message});
        self.send("response.failed", json!({"response": response}), out);
    }

    fn error(error: &ApiError, out: &mut Frames) {
        let data = json!({
            "type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0,
        });
        out.event("error", &data);
    }
}
