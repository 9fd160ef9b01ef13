//! Calls without markup: an answer that is nothing but objects `{"name": ..., "arguments": {...}}`, as many
//! models write them whatever their template says. A code fence around them is no part of the answer.

use serde_json::Value;

use crate::tool_schemas::ToolSchemas;

/// A call of a known tool.
#[derive(Debug, PartialEq)]
pub(super) struct WholeCall {
    pub(super) name: String,
    /// JSON.
    pub(super) arguments: String,
}

/// Whether a text may be the beginning of calls: it is until the name of the first call is known.
pub(super) fn may_begin(text: &str, tools: &ToolSchemas) -> bool {
    let text = text.trim_ascii_start();
    let Some(body) = opened(text) else { return true };
    let mut rest = body.trim_ascii_start();
    rest = rest.strip_prefix('[').unwrap_or(rest).trim_ascii_start();
    for part in ["{", "\"name\"", ":", "\""] {
        rest = rest.trim_ascii_start();
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None => return part.starts_with(rest),
        }
    }
    match rest.split_once('"') {
        Some((name, _)) => tools.has(name),
        None => tools.begins(rest),
    }
}

/// The text after an opening code fence and its language; `None` while they may continue.
fn opened(text: &str) -> Option<&str> {
    match text.strip_prefix("```") {
        Some(rest) => {
            let line = rest.find(['\n', '{', '['])?;
            let language = rest[..line].trim_ascii();
            // a fence of other code is not held back
            let known = ["", "json", "JSON", "tool_call", "tool_code", "tool"].contains(&language);
            Some(if known { &rest[line..] } else { "?" })
        }
        None if "```".starts_with(text) => None,
        None => Some(text),
    }
}

/// The calls of a whole answer; `None` if it is anything else.
pub(super) fn parse(text: &str, tools: &ToolSchemas) -> Option<Vec<WholeCall>> {
    let text = opened(text.trim_ascii())?.trim_ascii();
    let text = text.strip_suffix("```").unwrap_or(text).trim_ascii();
    let mut calls = Vec::new();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    loop {
        match values.next() {
            None => break,
            Some(Ok(Value::Array(items))) => {
                for item in items {
                    calls.push(call(item, tools)?);
                }
            }
            Some(Ok(item)) => calls.push(call(item, tools)?),
            // some models separate calls by commas or semicolons
            Some(Err(_)) => {
                let rest = text[values.byte_offset()..].trim_ascii_start();
                let rest = rest.strip_prefix([',', ';']).filter(|_| !calls.is_empty())?;
                calls.extend(parse(rest, tools)?);
                break;
            }
        }
    }
    (!calls.is_empty()).then_some(calls)
}

fn call(value: Value, tools: &ToolSchemas) -> Option<WholeCall> {
    let Value::Object(mut members) = value else { return None };
    let Some(Value::String(name)) = members.remove("name") else { return None };
    let arguments = members.remove("arguments").or_else(|| members.remove("parameters"));
    members.remove("id");
    members.remove("type");
    if !members.is_empty() || !tools.has(&name) {
        return None;
    }
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(object @ Value::Object(_)) => object.to_string(),
        // arguments as a string of JSON
        Some(Value::String(text)) => {
            serde_json::from_str::<Value>(&text).ok().filter(Value::is_object).map(|_| text)?
        }
        Some(_) => return None,
    };
    Some(WholeCall { name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> ToolSchemas {
        let schema = json!({"type": "object"});
        ToolSchemas::new([("weather", &schema), ("time", &schema)])
    }

    #[test]
    fn whole_answers_are_calls() {
        let names = |text: &str| {
            parse(text, &tools())
                .map(|calls| calls.into_iter().map(|c| (c.name, c.arguments)).collect::<Vec<_>>())
        };
        let weather = || ("weather".to_owned(), "{\"city\":\"Oslo\"}".to_owned());
        let time = || ("time".to_owned(), "{}".to_owned());
        let one = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}";
        for text in [
            one.into(),
            format!(" \n{one}\n"),
            format!("```json\n{one}\n```"),
            format!("[{one}]"),
            format!("```\n{one}```"),
        ] {
            assert_eq!(names(&text), Some(vec![weather()]), "{text}");
        }
        for text in [
            format!("{one}\n{{\"name\": \"time\", \"parameters\": {{}}}}"),
            format!("[{one}, {{\"name\": \"time\"}}]"),
            format!("{one}; {{\"name\": \"time\", \"arguments\": \"{{}}\"}}"),
        ] {
            assert_eq!(names(&text), Some(vec![weather(), time()]), "{text}");
        }
        for text in [
            "",
            "{}",
            "Hello",
            "{\"name\": \"nobody\", \"arguments\": {}}",
            "{\"name\": \"time\", \"mood\": 1}",
            "{\"name\": \"time\", \"arguments\": 5}",
            "{\"name\": \"time\"} Here it is.",
            "{\"name\": \"time\", \"argum",
            "```python\nprint()\n```",
            "[]",
            "{\"name\": \"time\"},",
        ] {
            assert_eq!(names(text), None, "{text}");
        }
    }

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_call() {
        for (text, held) in [
            ("", true),
            (" ", true),
            ("{", true),
            ("{\"na", true),
            ("{\"name\": \"wea", true),
            ("{\"name\": \"weather\", ", true),
            ("```", true),
            ("```js", true),
            ("```json\n[ {", true),
            ("[", true),
            ("Hello", false),
            ("{\"city", false),
            ("{\"name\": \"x", false),
            ("{\"name\": \"weath\"", false),
            ("[1", false),
            ("```python\n", false),
        ] {
            assert_eq!(may_begin(text, &tools()), held, "{text:?}");
        }
    }
}
