//! The input of a response: a text, or items that become the messages of a conversation.

use base64::Engine as _;
use serde_json::{Value, json};
use tern::{Message, ToolCall};

use crate::http::error::{ApiError, Result};
use crate::ids;
use crate::request::conversation::arguments_of;
use crate::request::ignored::Object;
use crate::request::images;
use crate::request::json::Values;
use crate::request::params::Params;
use crate::response_store::KeyResponses;

/// The items of `input`, each with an id; a text becomes a message of the user. References are resolved.
pub(in crate::routes) fn items(input: Value, store: &KeyResponses) -> Result<Vec<Value>> {
    let items = match input {
        Value::String(text) => {
            vec![
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}),
            ]
        }
        Value::Array(items) => items,
        other => return Err(ApiError::expected("input", "a string or an array of items", &other)),
    };
    items.into_iter().enumerate().map(|(at, item)| with_id(item, at, store)).collect()
}

fn with_id(mut item: Value, at: usize, store: &KeyResponses) -> Result<Value> {
    let id = item["id"].as_str();
    // some clients send a reference without a type
    if item["type"] == "item_reference"
        || (id.is_some() && item.as_object().is_some_and(|item| item.len() == 1))
    {
        let path = format!("input[{at}].id");
        let id = id.ok_or_else(|| ApiError::bad(&*path, format!("missing required parameter: {path:?}")))?;
        let unknown = || {
            let message =
                format!("{path}: no stored item {id:?}; send the item itself, or store the response");
            ApiError::bad(&*path, message)
        };
        return store.item(id).ok_or_else(unknown);
    }
    if id.is_none()
        && let Value::Object(members) = &mut item
    {
        let prefix = match members.get("type").and_then(Value::as_str) {
            Some("function_call" | "custom_tool_call") => "fc_",
            Some("function_call_output" | "custom_tool_call_output") => "fco_",
            Some("reasoning") => "rs_",
            _ => "msg_",
        };
        members.insert("id".into(), ids::id(prefix).into());
        members.entry("type").or_insert("message".into());
    }
    Ok(item)
}

/// The messages of a conversation that begins with `instructions`.
pub(in crate::routes) fn messages(
    instructions: Option<&str>,
    items: &[Value],
    body: &Params,
) -> Result<Vec<Message>> {
    let mut conversation = Conversation { values: Values::new(), messages: vec![], reasoning: None };
    conversation.messages.extend(instructions.map(Message::system));
    for (at, item) in items.iter().enumerate() {
        conversation.add(body.nested(item.clone(), &format!("input[{at}]"))?)?;
    }
    Ok(conversation.messages)
}

/// Messages under construction.
struct Conversation {
    /// One limit for the arguments of all earlier calls.
    values: Values,
    messages: Vec<Message>,
    /// Reasoning that precedes the next message of the assistant.
    reasoning: Option<String>,
}

impl Conversation {
    fn add(&mut self, mut item: Params) -> Result<()> {
        let kind = item.string("type")?.unwrap_or_else(|| "message".into());
        match kind.as_str() {
            "message" => self.message(&mut item)?,
            "reasoning" => self.reasoning = reasoning(&mut item)?.or(self.reasoning.take()),
            "function_call" => {
                let (name, id) = (item.required_string("name")?, item.required_string("call_id")?);
                item.string("namespace")?;
                let given = item.take("arguments");
                let (arguments, parsed) = arguments_of(given, &item.name("arguments"), &self.values)?;
                self.call(ToolCall { id: Some(id), name, arguments, parsed });
            }
            "custom_tool_call" => {
                let (name, id) = (item.required_string("name")?, item.required_string("call_id")?);
                item.string("namespace")?;
                let arguments = json!({"input": item.required_string("input")?});
                let call = ToolCall::new(name, arguments.to_string());
                self.call(ToolCall { id: Some(id), ..call });
            }
            "function_call_output" | "custom_tool_call_output" => {
                let id = item.required_string("call_id")?;
                let output = item.take("output").ok_or_else(|| item.missing("output"))?;
                item.string("name")?;
                item.string("namespace")?;
                let content = content_of(output, "output", &item)?;
                self.messages.push(Message { role: "tool".into(), tool_call_id: Some(id), ..content });
            }
            _ => {
                let expected = "\"message\", \"reasoning\", \"function_call\", \"function_call_output\", \
                     \"custom_tool_call\", \"custom_tool_call_output\" or \"item_reference\"";
                return Err(ApiError::expected(&item.name("type"), expected, &kind.into()));
            }
        }
        item.finish(Object::Message, &[])
    }

    fn message(&mut self, item: &mut Params) -> Result<()> {
        let role = item.required_string("role")?;
        let content = item.take("content").ok_or_else(|| item.missing("content"))?;
        let path = item.name("content");
        let Message { content: text, images, .. } = content_of(content, "content", item)?;
        if !images.is_empty() && role != "user" {
            let message = format!("{path}: only messages of the user may have images");
            return Err(ApiError::bad(path, message));
        }
        match role.as_str() {
            "user" => self.messages.push(Message { images, ..Message::user(text) }),
            "assistant" => {
                let reasoning = self.reasoning.take();
                self.messages.push(Message { reasoning, ..Message::assistant(text) });
            }
            // instructions and the first messages of the developer are one system message:
            // many templates know one only
            "system" | "developer" => match self.messages.last_mut() {
                Some(last) if last.role == "system" => last.content = format!("{}\n\n{text}", last.content),
                _ => self.messages.push(Message::system(text)),
            },
            _ => {
                let expected = "\"user\", \"assistant\", \"system\" or \"developer\"";
                return Err(ApiError::expected(&item.name("role"), expected, &role.into()));
            }
        }
        Ok(())
    }

    /// Calls belong to the message of the assistant before them.
    fn call(&mut self, call: ToolCall) {
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            let reasoning = self.reasoning.take();
            self.messages.push(Message { reasoning, ..Message::assistant("") });
        }
        if let Some(last) = self.messages.last_mut() {
            last.tool_calls.push(call);
        }
    }
}

/// The text of a reasoning item: its content, what was encoded for the client, or its summary.
fn reasoning(item: &mut Params) -> Result<Option<String>> {
    let mut list = |name: &str| -> Result<Option<String>> {
        let parts = item.array(name)?.unwrap_or_default();
        let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        Ok(Some(texts.join("\n")).filter(|text| !text.is_empty()))
    };
    let (content, summary) = (list("content")?, list("summary")?);
    let encoded = item.string("encrypted_content")?.and_then(|text| decoded(&text));
    Ok(content.or(encoded).or(summary))
}

/// The reasoning of a stateless response: a client returns it unchanged.
pub(super) fn encoded(reasoning: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(reasoning)
}

fn decoded(text: &str) -> Option<String> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    String::from_utf8(bytes).ok()
}

/// A string, or parts, images and texts joined with line feeds: a message without a role.
fn content_of(content: Value, member: &str, item: &Params) -> Result<Message> {
    let (path, mut out) = (item.name(member), Message::default());
    let parts = match content {
        Value::String(text) => return Ok(Message { content: text, ..out }),
        Value::Array(parts) => parts,
        other => return Err(ApiError::expected(&path, "a string or an array of parts", &other)),
    };
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = item.nested(part, &format!("{path}[{at}]"))?;
        let kind = part.required_string("type")?;
        match kind.as_str() {
            "input_text" | "output_text" | "text" => out.push_text(&part.required_string("text")?),
            "refusal" => out.push_text(&part.required_string("refusal")?),
            "input_json" => match part.take("data") {
                Some(data @ (Value::Object(_) | Value::Array(_))) => out.push_text(&data.to_string()),
                other => {
                    let (name, other) = (part.name("data"), other.unwrap_or_default());
                    return Err(ApiError::expected(&name, "an object or an array of objects", &other));
                }
            },
            "input_image" => out.push_image(images::of_part(&mut part)?),
            _ => {
                let name = part.name("type");
                let message = format!("{name}: only text, JSON and images are supported, got {kind:?}");
                return Err(ApiError::bad(name, message));
            }
        }
        part.finish(Object::Part, &[("file_id", "files are not stored, send the image in image_url")])?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::http::auth::Key;
    use crate::request::params::Unparsed;
    use crate::response_store::ResponseStore;

    fn converted(input: Value) -> Result<Vec<Message>> {
        let store = Arc::new(ResponseStore::new(0, 0)).of(Key::NONE);
        let body = Params::parse(b"{}", Unparsed::default()).unwrap();
        messages(Some("Be brief."), &items(input, &store)?, &body)
    }

    #[test]
    fn items_become_messages() {
        assert_eq!(converted(json!("Hi")).unwrap(), [Message::system("Be brief."), Message::user("Hi")]);
        let got = converted(json!([
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encoded("Hm.")},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"x\":1}"},
            {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "free"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "3"}]},
            {"type": "custom_tool_call_output", "call_id": "b", "output": "4"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "So."}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
        ]));
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: Some(id.into()),
            ..ToolCall::new(name, arguments)
        };
        let first = Message {
            reasoning: Some("Hm.".into()),
            tool_calls: vec![call("a", "f", "{\"x\":1}"), call("b", "g", "{\"input\":\"free\"}")],
            ..Message::assistant("I look.")
        };
        let last = Message {
            reasoning: Some("So.".into()),
            tool_calls: vec![call("c", "f", "")],
            ..Message::assistant("")
        };
        let want = [
            Message::system("Be brief.\n\nBe kind."),
            Message::user("a\nb"),
            first,
            Message::tool("3", "a"),
            Message::tool("4", "b"),
            last,
        ];
        assert_eq!(got.unwrap(), want);
    }

    #[test]
    fn other_items_are_refused_with_their_path() {
        for (input, want) in [
            (json!(5), "input: expected a string or an array of items, got 5"),
            (json!([5]), "input[0]: expected an object, got 5"),
            (json!([{"role": "user"}]), "missing required parameter: \"input[0].content\""),
            (
                json!([{"role": "boss", "content": "a"}]),
                "input[0].role: expected \"user\", \"assistant\", \"system\" or \"developer\", got \"boss\"",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]),
                "input[0].content[0].type: only text, JSON and images are supported, got \"input_file\"",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_image", "detail": "auto", "image_url": "http://x/"}]}]),
                "input[0].content[0].image_url: expected a data URI with the image itself, `data:image/png;base64,...`; \
                 other URLs are not fetched",
            ),
            (
                json!([{"type": "item_reference", "id": "msg_9"}]),
                "input[0].id: no stored item \"msg_9\"; send the item itself, or store the response",
            ),
            (json!([{"role": "user", "content": "a", "mood": 1}]), "unknown parameter: \"input[0].mood\""),
        ] {
            assert_eq!(converted(input).unwrap_err().message, want);
        }
    }
}
