//! A grammar for calls of tools, in the shape in which the model writes them.

use serde_json::{Value, json};
use tern_text::Tokenizer;

use crate::error::GrammarError;
use crate::grammar::literal;
use crate::{limits, schema};

/// How a model writes a call: `BEGIN{"NAME_KEY": "the tool", "ARGUMENTS_KEY": {...}}END`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallShape {
    /// What stands before a call, or before a list of them; may be or hold control tokens.
    pub begin: String,
    /// What stands behind it.
    pub end: String,
    /// The key of the tool's name.
    pub name_key: String,
    /// The key of the arguments.
    pub arguments_key: String,
    /// Whether the calls are a JSON list between one begin and one end.
    pub list: bool,
}

/// The calls in Lark.
///
/// Calls that are no list follow each other on lines of their own, each with its begin and end; a shape without a
/// begin has no way to tell a second call from the first, and so has one.
pub(crate) fn lark(
    shape: &CallShape,
    tools: &[(String, Value)],
    many: bool,
    tokenizer: &Tokenizer,
) -> Result<String, GrammarError> {
    if tools.is_empty() {
        return Err(GrammarError::Empty("list of tools"));
    }
    if tools.len() > limits::TOOLS {
        return Err(GrammarError::Count { what: "tools", found: tools.len(), limit: limits::TOOLS });
    }
    schema::check_size("list of tools", tools.iter().map(|(_, parameters)| parameters), limits::TOOLS_TEXT)?;
    let found = tools.iter().map(|(name, _)| name.len()).sum();
    if found > limits::TEXT {
        return Err(GrammarError::Size { what: "list of tool names", found, limit: limits::TEXT });
    }

    let inside = if shape.list { "/items" } else { "" };
    let calls = tools.iter().enumerate().map(|(n, (name, parameters))| {
        // a `#/...` of the tool's own schema must be found where that schema now stands
        let place = format!("{inside}/anyOf/{n}/properties/{}", shape.arguments_key);
        let arguments = arguments(parameters, &place)
            .map_err(|error| GrammarError::Tool { name: name.clone(), error: Box::new(error) })?;
        Ok(json!({
            "type": "object",
            "properties": {&shape.name_key: {"const": name}, &shape.arguments_key: arguments},
            "required": [&shape.name_key, &shape.arguments_key],
            "additionalProperties": false,
        }))
    });
    let one = json!({ "anyOf": calls.collect::<Result<Vec<_>, GrammarError>>()? });
    let body = match shape.list {
        true => {
            json!({"type": "array", "items": one, "minItems": 1, "maxItems": if many { limits::CALLS } else { 1 }})
        }
        false => one,
    };
    let repeat = many && !shape.list && !shape.begin.is_empty();
    let more = if repeat { format!(r#" ("\n" call){{0,{}}}"#, limits::CALLS - 1) } else { String::new() };
    Ok(format!(
        "start: call{more}\ncall: {} %json {} {}\n",
        markup(&shape.begin, tokenizer),
        schema::with_options(body),
        markup(&shape.end, tokenizer),
    ))
}

/// The schema of a tool's arguments, which are an object whatever it says.
fn arguments(parameters: &Value, place: &str) -> Result<Value, GrammarError> {
    let mut cleaned = match parameters {
        Value::Null => json!({}),
        parameters => schema::clean(parameters, place)?,
    };
    if let Some(fields) = cleaned.as_object_mut() {
        fields.entry("type").or_insert_with(|| "object".into());
    }
    Ok(cleaned)
}

/// A text in Lark, with the control tokens in it as tokens.
fn markup(text: &str, tokenizer: &Tokenizer) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    for id in tokenizer.encode(text, false, true) {
        let Some(spelling) = tokenizer.token_text(id).filter(|_| tokenizer.is_control(id)) else { continue };
        let Some((before, after)) = rest.split_once(spelling) else { continue };
        if !before.is_empty() {
            parts.push(literal(before));
        }
        parts.push(format!("<[{id}]>"));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(literal(rest));
    }
    parts.join(" ")
}
