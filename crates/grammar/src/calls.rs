//! A grammar for tool calls, in the syntax of the model.

use serde_json::{Value, json};
use tern_text::{ArgumentForm, CallTexts, Tokenizer};

use crate::arguments::Writer;
use crate::error::GrammarError;
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
    let writer = Writer::new(tokenizer);
    let CallTexts { open, before_name, before_arguments, arguments: form, after_arguments, separator, close } =
        texts;
    // calls can only be repeated if a marker separates them
    let marked = match form {
        ArgumentForm::Json => !separator.is_empty(),
        _ => !separator.is_empty() || !after_arguments.is_empty(),
    };
    let more = if many && marked {
        format!(" ({} call){{0,{}}}", writer.markup(separator), limits::CALLS - 1)
    } else {
        String::new()
    };
    let names: Vec<String> = (0..tools.len()).map(|n| format!("call_{n}")).collect();
    let mut grammar = format!(
        "start: {} call{more} {}\ncall: {}\n",
        writer.markup(open),
        writer.markup(close),
        names.join(" | ")
    );
    grammar += &writer.shared_rules(form);
    for (rule, (name, parameters)) in names.iter().zip(tools) {
        let schema = arguments(parameters)
            .map_err(|error| GrammarError::Tool { name: name.clone(), error: Box::new(error) })?;
        let spelled = match form {
            ArgumentForm::Json => {
                let spelled = Value::from(name.as_str()).to_string(); // as in JSON, with quotes
                spelled[1..spelled.len() - 1].to_string()
            }
            _ => name.clone(),
        };
        let before = writer.markup(&format!("{before_name}{spelled}{before_arguments}"));
        let (inside, rules) = match form {
            ArgumentForm::Json => (format!("%json {}", schema::with_options(schema)), String::new()),
            ArgumentForm::Tags(tags) => writer.tags(tags, rule, &schema),
            ArgumentForm::Literal(literal) => writer.literals(literal, rule, &schema),
        };
        grammar += &format!("{rule}: {before} {inside} {}\n{rules}", writer.markup(after_arguments));
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
