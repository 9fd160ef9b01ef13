//! The messages of Anthropic's API: content blocks to the messages of a conversation.

use serde_json::Value;
use tern::{Message, ToolCall};

use crate::http::error::{ApiError, Result};
use crate::request::ignored::Object;
use crate::request::images;
use crate::request::params::Params;

/// The messages of a conversation that begins with a system prompt.
pub(super) fn messages(system: Option<Value>, messages: Vec<Value>, body: &Params) -> Result<Vec<Message>> {
    let mut out = Vec::new();
    if let Some(system) = system {
        let text = text(system, body, "system")?;
        if !text.is_empty() {
            out.push(Message::system(text));
        }
    }
    for (at, message) in messages.into_iter().enumerate() {
        add(body.nested(message, &format!("messages[{at}]"))?, &mut out)?;
    }
    Ok(out)
}

/// A string, or text blocks joined with line feeds.
fn text(content: Value, parent: &Params, member: &str) -> Result<String> {
    let message = content_of(content, parent, member, false)?;
    Ok(message.content)
}

/// The same with images, if there may be some: a message without a role.
fn content_of(content: Value, parent: &Params, member: &str, may_see: bool) -> Result<Message> {
    let (path, mut out) = (parent.name(member), Message::default());
    let blocks = match content {
        Value::String(text) => return Ok(Message { content: text, ..out }),
        Value::Array(blocks) => blocks,
        other => return Err(ApiError::expected(&path, "a string or an array of blocks", &other)),
    };
    for (at, block) in blocks.into_iter().enumerate() {
        let mut block = parent.nested(block, &format!("{path}[{at}]"))?;
        match block.required_string("type")?.as_str() {
            "text" => out.push_text(&block.required_string("text")?),
            "image" if may_see => out.push_image(images::of_source(&mut block)?),
            kind => return Err(unsupported(&block, kind)),
        }
        block.finish(Object::Part, &[])?;
    }
    Ok(out)
}

fn unsupported(block: &Params, kind: &str) -> ApiError {
    let name = block.name("type");
    let message = format!(
        "{name}: only text, images, tool calls, tool results and thinking are supported, got {kind:?}"
    );
    ApiError::bad(name, message)
}

/// The texts and images of a message's blocks, and what becomes separate messages.
#[derive(Default)]
struct Blocks {
    content: Message,
    thinking: Vec<String>,
    calls: Vec<ToolCall>,
    results: Vec<Message>,
}

fn add(mut message: Params, out: &mut Vec<Message>) -> Result<()> {
    let role = message.required_string("role")?;
    let content = message.take("content").ok_or_else(|| message.missing("content"))?;
    let mut blocks = Blocks::default();
    let path = message.name("content");
    match content {
        Value::String(text) => blocks.content.push_text(&text),
        Value::Array(given) => {
            for (at, block) in given.into_iter().enumerate() {
                blocks.add(message.nested(block, &format!("{path}[{at}]"))?)?;
            }
        }
        other => return Err(ApiError::expected(&path, "a string or an array of blocks", &other)),
    }
    let (text, images) = (blocks.content.content, blocks.content.images);
    if !images.is_empty() && role != "user" {
        let message = format!("{path}: only messages of the user may have images");
        return Err(ApiError::bad(path, message));
    }
    match role.as_str() {
        "assistant" => {
            let reasoning = Some(blocks.thinking.join("\n")).filter(|text| !text.is_empty());
            out.push(Message { reasoning, tool_calls: blocks.calls, ..Message::assistant(text) });
        }
        "user" => {
            // results answer the calls before them, and precede the text
            let is_text = blocks.results.is_empty() || !text.is_empty() || !images.is_empty();
            out.append(&mut blocks.results);
            out.extend(is_text.then(|| Message { images, ..Message::user(text) }));
        }
        "system" => out.push(Message::system(text)),
        _ => {
            let expected = "\"user\", \"assistant\" or \"system\"";
            return Err(ApiError::expected(&message.name("role"), expected, &role.into()));
        }
    }
    message.finish(Object::Message, &[])
}

impl Blocks {
    fn add(&mut self, mut block: Params) -> Result<()> {
        let kind = block.required_string("type")?;
        match kind.as_str() {
            "text" => self.content.push_text(&block.required_string("text")?),
            "image" => self.content.push_image(images::of_source(&mut block)?),
            "thinking" => self.thinking.push(block.required_string("thinking")?),
            "redacted_thinking" => drop(block.take("data")),
            "tool_use" => {
                let (id, name) = (block.required_string("id")?, block.required_string("name")?);
                let input = block.take("input").unwrap_or_else(|| Value::Object(Default::default()));
                block.string("toolset_name")?;
                let call = match input {
                    input @ Value::Object(_) => {
                        let arguments = input.to_string();
                        ToolCall { id: Some(id), name, arguments, parsed: Some(input) }
                    }
                    other => return Err(ApiError::expected(&block.name("input"), "an object", &other)),
                };
                self.calls.push(call);
                return block.finish(Object::Call, &[]);
            }
            "tool_result" => {
                let id = block.required_string("tool_use_id")?;
                let content = block.take("content").unwrap_or_else(|| "".into());
                let mut result = content_of(content, &block, "content", true)?;
                block.string("toolset_name")?;
                if block.bool("is_error")?.unwrap_or(false) {
                    let before = "Error: ";
                    result.content.insert_str(0, before);
                    result.images.iter_mut().for_each(|image| image.at += before.len());
                }
                let images = result.images;
                self.results.push(Message { images, ..Message::tool(result.content, id) });
            }
            _ => return Err(unsupported(&block, &kind)),
        }
        block.finish(Object::Part, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::Unparsed;
    use serde_json::json;

    fn converted(system: Value, given: Value) -> Result<Vec<Message>> {
        let body = Params::parse(b"{}", Unparsed::default()).unwrap();
        messages(Some(system), given.as_array().unwrap().clone(), &body)
    }

    #[test]
    fn blocks_become_messages() {
        let system = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
        let got = converted(
            system,
            json!([
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "3"}]},
                    {"type": "tool_result", "tool_use_id": "b", "is_error": true, "content": "no"},
                    {"type": "text", "text": "And?"}]},
            ]),
        );
        let call = ToolCall { id: Some("a".into()), ..ToolCall::new("f", "{\"x\":1}") };
        let assistant = Message {
            reasoning: Some("Hm.".into()),
            tool_calls: vec![call],
            ..Message::assistant("I look.")
        };
        let want = [
            Message::system("Be brief."),
            Message::user("Hi"),
            assistant,
            Message::tool("3", "a"),
            Message::tool("Error: no", "b"),
            Message::user("And?"),
        ];
        assert_eq!(got.unwrap(), want);
    }

    #[test]
    fn images_are_part_of_messages_and_of_results() {
        let image =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQID"}});
        let given = json!([{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [{"type": "text", "text": "3"}, image]},
            image, {"type": "text", "text": "And?"}]}]);
        let mut result = Message::tool("Error: 3", "a");
        result.push_image([1, 2, 3]);
        let want = [result, Message::user("And?").image([1, 2, 3])];
        assert_eq!(converted(json!(""), given).unwrap(), want);
    }

    #[test]
    fn other_blocks_are_refused_with_their_path() {
        for (message, want) in [
            (
                json!({"role": "user", "content": [{"type": "document", "source": {}}]}),
                "messages[0].content[0].type: only text, images, tool calls, tool results and thinking are supported, got \"document\"",
            ),
            (
                json!({"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]}),
                "messages[0].content[0].source.type: expected \"base64\" or \"url\", got \"file\"",
            ),
            (
                json!({"role": "assistant", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AQID"}}]}),
                "messages[0].content: only messages of the user may have images",
            ),
            (json!({"role": "user"}), "missing required parameter: \"messages[0].content\""),
            (
                json!({"role": "tool", "content": "a"}),
                "messages[0].role: expected \"user\", \"assistant\" or \"system\", got \"tool\"",
            ),
        ] {
            assert_eq!(converted(json!(""), json!([message])).unwrap_err().message, want);
        }
    }
}
