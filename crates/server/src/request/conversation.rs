//! Messages of a conversation, from the API's shape to the template's.

use serde_json::{Value, json};
use tern::{Message, ToolCall};

use crate::http::error::{ApiError, Result};
use crate::request::ignored::Object;
use crate::request::images;
use crate::request::json::{JsonError, Values};
use crate::request::params::{Params, json_error};

/// A role, its name in templates, and the members of its messages besides `content`.
struct Role {
    name: &'static str,
    known_as: &'static str,
    members: &'static [&'static str],
}

const ROLES: &[Role] = &[
    Role { name: "system", known_as: "system", members: &["name"] },
    Role { name: "developer", known_as: "system", members: &["name"] },
    Role { name: "user", known_as: "user", members: &["name"] },
    Role { name: "assistant", known_as: "assistant", members: &["name", "reasoning_content"] },
    Role { name: "tool", known_as: "tool", members: &["name", "tool_call_id"] },
];

/// Validates and converts the messages of a request.
pub(crate) fn convert(messages: Vec<Value>, body: &Params) -> Result<Vec<Message>> {
    let values = Values::new(); // one limit for the arguments of all earlier calls
    let convert = |(at, message)| convert_one(body.nested(message, &format!("messages[{at}]"))?, &values);
    messages.into_iter().enumerate().map(convert).collect()
}

fn convert_one(mut message: Params, values: &Values) -> Result<Message> {
    let given = message.required_string("role")?;
    let Some(role) = ROLES.iter().find(|role| role.name == given) else {
        let names: Vec<&str> = ROLES.iter().map(|role| role.name).collect();
        return Err(ApiError::expected(
            &message.name("role"),
            format!("one of {}", names.join(", ")),
            &given.into(),
        ));
    };
    let assistant = role.name == "assistant";
    let calls = if assistant { message.array("tool_calls")?.unwrap_or_default() } else { vec![] };
    let mut out = Message { role: role.known_as.into(), ..Message::default() };
    match message.take("content") {
        Some(content) => add_content(content, &message, &mut out)?,
        None if assistant || role.name == "tool" => {}
        None => return Err(message.missing("content")),
    }
    // some servers use this name
    let reasoning = if assistant { message.string("reasoning")? } else { None };
    let mut member = |name: &str| match role.members.contains(&name) {
        true => message.string(name),
        false => Ok(None),
    };
    out.name = member("name")?;
    out.reasoning = member("reasoning_content")?.or(reasoning);
    out.tool_call_id = member("tool_call_id")?;
    let path = message.name("tool_calls");
    for (at, call) in calls.into_iter().enumerate() {
        let call = message.nested(call, &format!("{path}[{at}]"))?;
        out.tool_calls.push(convert_call(call, values)?);
    }
    message.finish(
        Object::Message,
        &[
            ("audio", "audio is not supported"),
            ("function_call", "no longer part of the API, use tool_calls"),
        ],
    )?;
    Ok(out)
}

/// A string, or parts: images, and texts joined with line feeds as other servers do.
fn add_content(content: Value, message: &Params, to: &mut Message) -> Result<()> {
    let path = message.name("content");
    let parts = match content {
        Value::String(text) => {
            to.content = text;
            return Ok(());
        }
        Value::Array(parts) => parts,
        other => return Err(ApiError::expected(&path, "a string or an array of parts", &other)),
    };
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = message.nested(part, &format!("{path}[{at}]"))?;
        let kind = part.required_string("type")?;
        match kind.as_str() {
            "text" => to.push_text(&part.required_string("text")?),
            "refusal" => to.push_text(&part.required_string("refusal")?),
            "image_url" => to.push_image(images::of_part(&mut part)?),
            _ => {
                let name = part.name("type");
                let message = format!("{name}: only \"text\" and \"image_url\" are supported, got {kind:?}");
                return Err(ApiError::bad(name, message));
            }
        }
        part.finish(Object::Part, &[])?;
    }
    Ok(())
}

fn convert_call(mut call: Params, values: &Values) -> Result<ToolCall> {
    let kind = call.string("type")?.unwrap_or_else(|| "function".into());
    if kind != "function" {
        return Err(ApiError::expected(&call.name("type"), "\"function\"", &kind.into()));
    }
    let id = call.string("id")?;
    let missing = call.missing("function");
    let mut function = call.object("function")?.ok_or(missing)?;
    call.finish(Object::Call, &[])?;
    let name = function.required_string("name")?;
    let arguments = function.take("arguments");
    let (arguments, parsed) = arguments_of(arguments, &function.name("arguments"), values)?;
    function.finish(Object::Call, &[])?;
    Ok(ToolCall { id, name, arguments, parsed })
}

/// The arguments of an earlier call as text, and parsed if they are an object.
pub(crate) fn arguments_of(
    arguments: Option<Value>,
    path: &str,
    values: &Values,
) -> Result<(String, Option<Value>)> {
    Ok(match arguments {
        None => ("{}".into(), Some(json!({}))),
        Some(Value::String(text)) => match values.parse(&text) {
            Ok(object @ Value::Object(_)) => (text, Some(object)),
            Err(error @ JsonError::TooMany) => return Err(json_error(error, path)),
            _ if text.trim().is_empty() => (text, Some(json!({}))),
            // anything else is passed to the template as text
            _ => (text, None),
        },
        Some(object @ Value::Object(_)) => (object.to_string(), Some(object)),
        Some(other) => return Err(ApiError::expected(path, "a string of JSON", &other)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::Unparsed;

    fn converted(messages: Value) -> Result<Vec<Message>> {
        let body = Params::parse(b"{}", Unparsed::default()).unwrap();
        convert(messages.as_array().unwrap().clone(), &body)
    }

    #[test]
    fn parts_are_joined_roles_renamed_and_arguments_parsed() {
        let call = |arguments: &str| json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let got = converted(json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [call("{\"x\": 1}"), call("oops"), call("")]},
            {"role": "tool", "content": "3", "tool_call_id": "a"},
        ]));
        let call = |arguments| ToolCall { id: Some("a".into()), ..ToolCall::new("f", arguments) };
        let tool_calls = vec![call("{\"x\": 1}"), call("oops"), call("")];
        let assistant = Message { tool_calls, ..Message::assistant("") };
        assert_eq!(got.unwrap(), [Message::system("a\nb"), assistant, Message::tool("3", "a")]);
    }

    #[test]
    fn images_are_where_they_are_between_texts() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AQID"}});
        let text = |text: &str| json!({"type": "text", "text": text});
        let parts = json!([text("a"), text("b"), image, text("c"), image]);
        let got = converted(json!([{"role": "user", "content": parts}])).unwrap();
        let mut want = Message::user("a\nb");
        want.push_image([1, 2, 3]);
        want.push_text("c");
        want.push_image([1, 2, 3]);
        assert_eq!(got, [want]);
        assert_eq!((got[0].content.as_str(), got[0].images[0].at, got[0].images[1].at), ("a\nbc", 3, 4));
    }

    #[test]
    fn unsupported_content_is_refused_with_its_path() {
        for (message, want) in [
            (json!(5), "messages[0]: expected an object, got 5"),
            (json!({}), "missing required parameter: \"messages[0].role\""),
            (json!({"role": "user"}), "missing required parameter: \"messages[0].content\""),
            (
                json!({"role": "user", "content": "a", "tool_calls": []}),
                "unknown parameter: \"messages[0].tool_calls\"",
            ),
            (
                json!({"role": "boss", "content": "a"}),
                "messages[0].role: expected one of system, developer, user, assistant, tool, got \"boss\"",
            ),
            (
                json!({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}),
                "messages[0].content[0].type: only \"text\" and \"image_url\" are supported, got \"input_audio\"",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:text/plain;base64,AA=="}}]}),
                "messages[0].content[0].image_url.url: expected the media type of an image, such as image/png, got \"text/plain\"",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": 5}]}),
                "messages[0].content[0].image_url: expected an object or a string, got 5",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "much"}}]}),
                "messages[0].content[0].image_url.detail: expected one of auto, low, high, original, got \"much\"",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}),
                "messages[0].tool_calls[0].function.arguments: expected a string of JSON, got 5",
            ),
        ] {
            assert_eq!(converted(json!([message])).unwrap_err().message, want);
        }
    }
}
