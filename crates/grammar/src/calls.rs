//! A grammar for tool calls, in the syntax of the model.

use serde_json::{Value, json};
use tern_text::{CallTexts, Tokenizer};

use crate::error::GrammarError;
use crate::lark::literal;
use crate::{limits, schema};

/// The calls in Lark: the fixed texts of the syntax, with a name and its arguments between them.
pub(crate) fn lark(
    texts: &CallTexts,
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
    let markup = |text: &str| markup(text, tokenizer);
    let CallTexts { open, before_name, before_arguments, after_arguments, separator, close } = texts;
    // calls can only be repeated if a marker separates them
    let marked = !separator.is_empty() && (!open.is_empty() || !before_name.is_empty());
    let more = if many && marked {
        format!(" ({} call){{0,{}}}", markup(separator), limits::CALLS - 1)
    } else {
        String::new()
    };
    let names: Vec<String> = (0..tools.len()).map(|n| format!("call_{n}")).collect();
    let mut grammar =
        format!("start: {} call{more} {}\ncall: {}\n", markup(open), markup(close), names.join(" | "));
    for (rule, (name, parameters)) in names.iter().zip(tools) {
        let arguments = arguments(parameters)
            .map_err(|error| GrammarError::Tool { name: name.clone(), error: Box::new(error) })?;
        let spelled = Value::from(name.as_str()).to_string(); // as in JSON, with quotes
        let spelled = &spelled[1..spelled.len() - 1];
        grammar += &format!(
            "{rule}: {} %json {} {}\n",
            markup(&format!("{before_name}{spelled}{before_arguments}")),
            schema::with_options(arguments),
            markup(after_arguments),
        );
    }
    Ok(grammar)
}

/// The schema of a tool's arguments, which are always an object.
fn arguments(parameters: &Value) -> Result<Value, GrammarError> {
    let mut cleaned = match parameters {
        Value::Null => json!({}),
        parameters => schema::clean(parameters)?,
    };
    if let Some(fields) = cleaned.as_object_mut() {
        fields.entry("type").or_insert_with(|| "object".into());
    }
    Ok(cleaned)
}

/// A text in Lark, with its control tokens as token ids.
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
