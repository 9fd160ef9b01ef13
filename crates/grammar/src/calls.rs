//! A grammar for calls of tools, in the shape in which the model writes them.

use serde_json::{Value, json};
use tern_text::{CallTexts, Tokenizer};

use crate::error::GrammarError;
use crate::grammar::literal;
use crate::{limits, schema};

/// The calls in Lark: the fixed texts of the style, and between them a name and its arguments.
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
    let words = |text: &str| markup(text, tokenizer);
    let CallTexts { open, before_name, before_arguments, after_arguments, separator, close } = texts;
    // a second call must be told from the first
    let marked = !separator.is_empty() && (!open.is_empty() || !before_name.is_empty());
    let more = if many && marked {
        format!(" ({} call){{0,{}}}", words(separator), limits::CALLS - 1)
    } else {
        String::new()
    };
    let names: Vec<String> = (0..tools.len()).map(|n| format!("call_{n}")).collect();
    let mut grammar =
        format!("start: {} call{more} {}\ncall: {}\n", words(open), words(close), names.join(" | "));
    for (rule, (name, parameters)) in names.iter().zip(tools) {
        let arguments = arguments(parameters)
            .map_err(|error| GrammarError::Tool { name: name.clone(), error: Box::new(error) })?;
        let spelled = Value::from(name.as_str()).to_string(); // as it stands in JSON, quotes included
        let spelled = &spelled[1..spelled.len() - 1];
        grammar += &format!(
            "{rule}: {} %json {} {}\n",
            words(&format!("{before_name}{spelled}{before_arguments}")),
            schema::with_options(arguments),
            words(after_arguments),
        );
    }
    Ok(grammar)
}

/// The schema of a tool's arguments, which are an object whatever it says.
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
