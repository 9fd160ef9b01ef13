//! Messages of a conversation, from the API's shape to what templates read.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::json::{JsonError, Values};
use crate::model::ContentShape;
use crate::params::{Params, parsed};

/// A role, the name a template knows it by, and the members its messages may have beside `content`.
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

/// What clients send back of an answer that says nothing to the model.
const IGNORED: &[&str] = &["annotations", "id", "refusal"];

/// How the arguments of an earlier call are given to a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arguments {
    /// As an object, which most templates write as JSON themselves.
    Object,
    /// As the text that the API has.
    Text,
}

/// The messages as a template reads them.
pub(crate) fn convert(messages: Vec<Value>, shape: ContentShape, arguments: Arguments) -> Result<Vec<Value>> {
    let values = Values::new();
    let reading = Reading { shape, arguments, values: &values };
    let convert = |(at, message)| convert_one(message, &format!("messages[{at}]"), &reading);
    messages.into_iter().enumerate().map(convert).collect()
}

/// How messages are converted.
struct Reading<'a> {
    shape: ContentShape,
    arguments: Arguments,
    /// What the arguments of all earlier calls may have together.
    values: &'a Values,
}

fn convert_one(message: Value, path: &str, reading: &Reading<'_>) -> Result<Value> {
    let mut message = Params::of(message, path)?;
    let given = message.need_string("role")?;
    let Some(role) = ROLES.iter().find(|role| role.name == given) else {
        let names: Vec<&str> = ROLES.iter().map(|role| role.name).collect();
        return Err(ApiError::want(&message.name("role"), names.join(", "), &given.into()));
    };
    let mut out = Map::new();
    out.insert("role".into(), role.known_as.into());
    let assistant = role.name == "assistant";
    let calls = if assistant { message.array("tool_calls")?.unwrap_or_default() } else { vec![] };
    let text = match message.take("content") {
        Some(content) => content_text(content, &message.name("content"))?,
        None if assistant => String::new(),
        None => return Err(message.missing("content")),
    };
    out.insert(
        "content".into(),
        match reading.shape {
            ContentShape::Text => text.into(),
            ContentShape::Parts => json!([{"type": "text", "text": text}]),
        },
    );
    // the name some other servers have for it
    let reasoning = if assistant { message.string("reasoning")? } else { None };
    out.extend(reasoning.map(|text| ("reasoning_content".into(), text.into())));
    for member in role.members {
        if let Some(text) = message.string(member)? {
            out.insert((*member).into(), text.into());
        }
    }
    if !calls.is_empty() {
        let path = message.name("tool_calls");
        let call = |(at, call)| convert_call(call, &format!("{path}[{at}]"), reading);
        let calls: Result<Vec<Value>> = calls.into_iter().enumerate().map(call).collect();
        out.insert("tool_calls".into(), calls?.into());
    }
    message.finish(
        IGNORED,
        &[
            ("audio", "the model does not hear"),
            ("function_call", "is no longer part of the API: use tool_calls"),
        ],
    )?;
    Ok(out.into())
}

/// A text, or parts that are texts, one a line as other servers join them.
fn content_text(content: Value, path: &str) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(ApiError::want(path, "a string or an array of parts", &other)),
    };
    let part = |(at, part): (usize, Value)| {
        let mut part = Params::of(part, &format!("{path}[{at}]"))?;
        let kind = part.need_string("type")?;
        if kind != "text" {
            let name = part.name("type");
            let words = format!("{name}: the model reads text, got a part of type {kind:?}");
            return Err(ApiError::bad(name, words));
        }
        let text = part.need_string("text")?;
        part.finish(&["annotations"], &[])?;
        Ok(text)
    };
    let texts: Result<Vec<String>> = parts.into_iter().enumerate().map(part).collect();
    Ok(texts?.join("\n"))
}

fn convert_call(call: Value, path: &str, reading: &Reading<'_>) -> Result<Value> {
    let mut call = Params::of(call, path)?;
    let kind = call.string("type")?.unwrap_or_else(|| "function".into());
    if kind != "function" {
        return Err(ApiError::want(&call.name("type"), "\"function\"", &kind.into()));
    }
    let id = call.string("id")?;
    let missing = call.missing("function");
    let mut function = call.object("function")?.ok_or(missing)?;
    call.finish(&["index"], &[])?;
    let name = function.need_string("name")?;
    let given = match function.take("arguments") {
        Some(Value::String(text)) if reading.arguments == Arguments::Object => {
            match reading.values.parse(&text) {
                Ok(object @ Value::Object(_)) => object,
                Err(JsonError::TooMany) => {
                    return parsed(Err(JsonError::TooMany), &function.name("arguments"));
                }
                // what is not an object stays as it was written
                _ if text.trim().is_empty() => json!({}),
                _ => text.into(),
            }
        }
        Some(text @ Value::String(_)) => text,
        Some(object @ Value::Object(_)) => match reading.arguments {
            Arguments::Object => object,
            Arguments::Text => object.to_string().into(),
        },
        None => json!({}),
        Some(other) => return Err(ApiError::want(&function.name("arguments"), "JSON in a string", &other)),
    };
    function.finish(&[], &[])?;
    let mut out = json!({"type": "function", "function": {"name": name, "arguments": given}});
    if let (Some(id), Some(out)) = (id, out.as_object_mut()) {
        out.insert("id".into(), id.into());
    }
    Ok(out)
}

/// The conversation for a template that knows no tools: `instructions`, calls and results become plain text.
pub(crate) fn in_words(messages: Vec<Value>, instructions: Option<&str>) -> Vec<Value> {
    let mut out: Vec<Value> = messages.into_iter().map(message_in_words).collect();
    let Some(instructions) = instructions else { return out };
    match out.first_mut() {
        Some(first) if first["role"] == "system" => {
            let text = first["content"].as_str().unwrap_or_default();
            first["content"] = format!("{text}\n\n{instructions}").into();
        }
        _ => out.insert(0, json!({"role": "system", "content": instructions})),
    }
    out
}

fn message_in_words(mut message: Value) -> Value {
    if let Some(calls) = message["tool_calls"].as_array() {
        let calls: Vec<Value> = calls.iter().map(|call| call["function"].clone()).collect();
        return json!({"role": "assistant", "content": Value::from(calls).to_string()});
    }
    if message["role"] == "tool" {
        let text = message["content"].as_str().unwrap_or_default();
        return json!({"role": "user", "content": format!("The function answered: {text}")});
    }
    if let Some(members) = message.as_object_mut() {
        members.remove("tool_calls");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(messages: Value) -> Result<Value> {
        let messages = messages.as_array().unwrap().clone();
        convert(messages, ContentShape::Text, Arguments::Object).map(Value::from)
    }

    #[test]
    fn parts_are_joined_roles_renamed_and_arguments_parsed() {
        let call = |arguments: &str| json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let got = text(json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [call("{\"x\": 1}"), call("oops"), call("")]},
            {"role": "tool", "content": "3", "tool_call_id": "a"},
        ]));
        let call = |arguments: Value| json!({"type": "function", "function": {"name": "f", "arguments": arguments}, "id": "a"});
        assert_eq!(
            got.unwrap(),
            json!([
                {"role": "system", "content": "a\nb"},
                {"role": "assistant", "content": "", "tool_calls": [call(json!({"x": 1})), call(json!("oops")), call(json!({}))]},
                {"role": "tool", "content": "3", "tool_call_id": "a"},
            ])
        );
    }

    #[test]
    fn templates_that_want_parts_get_parts() {
        let messages = vec![json!({"role": "user", "content": "a"})];
        let got = convert(messages, ContentShape::Parts, Arguments::Object).unwrap();
        assert_eq!(got[0]["content"], json!([{"type": "text", "text": "a"}]));
    }

    #[test]
    fn what_a_model_cannot_read_is_refused_by_its_place() {
        for (message, want) in [
            (json!(5), "messages[0]: want an object, got 5"),
            (json!({}), "messages[0].role: the parameter is missing"),
            (json!({"role": "user"}), "messages[0].content: the parameter is missing"),
            (
                json!({"role": "user", "content": "a", "tool_calls": []}),
                "unknown parameter: \"messages[0].tool_calls\"",
            ),
            (
                json!({"role": "boss", "content": "a"}),
                "messages[0].role: want system, developer, user, assistant, tool, got \"boss\"",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
                "messages[0].content[0].type: the model reads text, got a part of type \"image_url\"",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}),
                "messages[0].tool_calls[0].function.arguments: want JSON in a string, got 5",
            ),
        ] {
            assert_eq!(text(json!([message])).unwrap_err().message, want);
        }
    }
}
