//! Answers of every style, whole and divided into pieces at every position.

mod elements;
mod messages;
mod properties;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tern_text::{
    AnswerParser, ArgumentForm, CallForm, CallStyle, ITEM, Markup, Part, TagStyle, ToolSchemas, ValueKind,
};

/// The tools of all answers below.
fn tools() -> Option<Arc<ToolSchemas>> {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"},
        "list": {"type": "array"}, "ok": {"type": "boolean"}, "text": {"type": "string"},
    });
    let point = json!({"type": "object", "properties": {"x": {"type": "number"}, "zip": {"type": "string"}}});
    let nested = json!({
        "properties": {
            "to": {"type": "string"}, "n": {"type": "integer"}, "where": {"$ref": "#/$defs/point"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "item": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/point"}}, {"type": "null"}]},
        },
        "$defs": {"point": point},
    });
    let tools = [("weather", &json!({"properties": properties})), ("plan", &nested)];
    Some(Arc::new(ToolSchemas::new(tools)))
}

/// The parsed answer, which must not depend on the pieces.
#[derive(Debug, Default, Clone, PartialEq)]
struct Whole {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

impl Whole {
    fn add(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Reasoning(text) => self.reasoning += &text,
                Part::Content(text) => self.content += &text,
                Part::CallBegin { index, name } => {
                    assert_eq!(index, self.calls.len());
                    self.calls.push((name, String::new()));
                }
                Part::CallArguments { index, text } => {
                    assert_eq!(index + 1, self.calls.len(), "arguments of a call that is not the last");
                    self.calls[index].1 += &text;
                }
            }
        }
    }
}

fn parse<'a>(markup: &Markup, prompt: &str, tools: bool, pieces: impl IntoIterator<Item = &'a str>) -> Whole {
    let mut parser = AnswerParser::new(markup, prompt, crate::tools().filter(|_| tools));
    let mut whole = Whole::default();
    for piece in pieces {
        whole.add(parser.push(piece));
    }
    whole.add(parser.finish());
    whole
}

/// Parses the answer at once, in two pieces at every position, and character by character.
fn read(markup: &Markup, prompt: &str, answer: &str) -> Whole {
    let whole = parse(markup, prompt, true, [answer]);
    for (at, _) in answer.char_indices() {
        let (first, second) = answer.split_at(at);
        assert_eq!(parse(markup, prompt, true, [first, second]), whole, "{first:?} then {second:?}");
    }
    assert_eq!(parse(markup, prompt, true, answer.split("").filter(|c| !c.is_empty())), whole);
    whole
}

fn said(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Whole {
    let calls = calls.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string())).collect();
    Whole { reasoning: reasoning.into(), content: content.into(), calls }
}

/// Minimal templates that identify a style.
const THINK: &str = "</think>";
const HERMES: &str = "<tool_call>\n{\"name\": ...}\n</tool_call> tool_calls";
const LLAMA: &str = r#"Respond in the format {"name": function name, "parameters": ...} tool_calls"#;
const NEMO: &str = "[TOOL_CALLS][ tool_calls";
const MISTRAL: &str = "[TOOL_CALLS] name [ARGS] tool_calls [/THINK]";
const GENERIC: &str = "{% if tools %}";
const HARMONY: &str = "<|channel|>analysis<|message|> <|end|> <|start|>assistant <|channel|>final \
                       <|channel|>commentary assistant to=functions. tool_calls";
const DEEPSEEK: &str = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜> tool_calls </think>";
const KIMI: &str = "<|tool_calls_section_begin|> <|tool_call_begin|> <|tool_call_argument_begin|> tool_calls";

const FUNCTIONARY: &str = ">>>${recipient} '>>>all\\n' tool_calls";

#[test]
fn reasoning_and_content() {
    let markup = Markup::of(THINK);
    let open = "<|im_start|>assistant\n<think>\n";
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let user = "what is <think>?<|im_end|>\n<|im_start|>assistant\n";
    for (prompt, answer, want) in [
        ("", "<think>\nA  b\nc\n</think>\n\nHello\n", said("A  b\nc", "Hello\n", &[])),
        ("", "\n<think></think>Hello", said("", "Hello", &[])),
        ("", " Hello <think>no</think> ", said("", " Hello <think>no</think> ", &[])),
        ("", "<think>one</think>\n<think>two</think>x", said("onetwo", "x", &[])),
        (open, "A\n</think>\n\nB", said("A", "B", &[])),
        (open, "<think>\nA\n</think>\n\nB", said("A", "B", &[])),
        (open, "cut off </thi", said("cut off </thi", "", &[])),
        (open, "</think>", said("", "", &[])),
        (closed, "\nB", said("", "B", &[])),
        (user, "A</think>B", said("", "A</think>B", &[])),
        ("", "<thi", said("", "<thi", &[])),
        ("", "\n</think>\nB</think>", said("", "B</think>", &[])),
        ("", "</thi", said("", "</thi", &[])),
        ("", " \n ", said("", " \n ", &[])),
        ("", "", said("", "", &[])),
    ] {
        assert_eq!(read(&markup, prompt, answer), want, "{prompt:?} {answer:?}");
    }
    let mistral = Markup::of(MISTRAL);
    assert_eq!(read(&mistral, "[/INST]", "[THINK]Hm.[/THINK]Hi [you]"), said("Hm.", "Hi [you]", &[]));
}

#[test]
fn hermes_calls() {
    let markup = Markup::of(&[THINK, HERMES].concat());
    let weather = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\", \"n\": [1, {}]}}\n</tool_call>";
    let args = r#"{"city": "Zürich", "n": [1, {}]}"#;
    for (answer, want) in [
        (weather.to_string(), said("", "", &[("weather", args)])),
        (format!("{weather}\n{weather}\n"), said("", "", &[("weather", args), ("weather", args)])),
        (format!("<think>\nHm.\n</think>\n\n{weather}"), said("Hm.", "", &[("weather", args)])),
        (format!("I look.\n\n{weather} Done."), said("", "I look.Done.", &[("weather", args)])),
        (
            format!("{weather}<think>more</think>{weather}"),
            said("more", "", &[("weather", args), ("weather", args)]),
        ),
        // the other order, arguments as a string, missing arguments, and other members
        (
            r#"<tool_call>{"arguments": {"a": 1}, "name": "f", "id": [1, "}"]}</tool_call>"#.into(),
            said("", "", &[("f", r#"{"a": 1}"#)]),
        ),
        (
            r#"<tool_call>{"id": "x", "name": "f\u0021", "arguments": "{\"a\": \"\\\"\"}"}</tool_call>"#
                .into(),
            said("", "", &[("f!", r#"{"a": "\""}"#)]),
        ),
        (r#"<tool_call>{"name": "f"}</tool_call>."#.into(), said("", ".", &[("f", "{}")])),
        (r#"<tool_call>{"name": "f", "arguments": null}</tool_call>"#.into(), said("", "", &[("f", "{}")])),
        // markers inside a string are part of the string
        (
            r#"<tool_call>{"name": "f", "arguments": {"a": "</tool_call><tool_call>\""}}</tool_call>"#.into(),
            said("", "", &[("f", r#"{"a": "</tool_call><tool_call>\""}"#)]),
        ),
        // a surplus bracket, a missing bracket, a missing end
        (r#"<tool_call>{"name": "f", "arguments": {}}}</tool_call>x"#.into(), said("", "x", &[("f", "{}")])),
        (r#"<tool_call>{"name": "f", "arguments": {}</tool_call>x"#.into(), said("", "x", &[("f", "{}")])),
        (
            r#"<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>x"#.into(),
            said("", "x", &[("f", r#"{"a": 1"#)]),
        ),
        (r#"<tool_call>{"name": "f", "arguments": {}} x"#.into(), said("", "x", &[("f", "{}")])),
        // cut off
        (r#"<tool_call>{"name": "f", "argu"#.into(), said("", "", &[("f", "")])),
        (r#"<tool_call>{"name": "f", "arguments": {"#.into(), said("", "", &[("f", "{")])),
        (r#"<tool_call>{"name": "f", "arguments": {"a": "b"#.into(), said("", "", &[("f", r#"{"a": "b"#)])),
    ] {
        assert_eq!(read(&markup, "", &answer), want, "{answer:?}");
    }
    for no_call in [
        "Write <tool_call> before it.",
        " a <tool_call>\n ",
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 1}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"no\"}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"arguments\": {1}, \"name\": \"f\"}</tool_call>",
        "<tool_call>{\"na",
        "<tool_call>ünfug",
        "{\"name\": \"f\", \"arguments\": {}}",
        "</tool_call> < <t <tool_cal",
    ] {
        assert_eq!(read(&markup, "", no_call), said("", no_call, &[]));
    }
    let after = read(&markup, "", "<tool_call> is <tool_call>{\"name\": \"f\"}</tool_call>");
    assert_eq!(after, said("", "<tool_call> is", &[("f", "{}")]));
    assert_eq!(parse(&markup, "", false, [weather]), said("", weather, &[]));
}

#[test]
fn llama_and_generic_calls() {
    let llama = Markup::of(LLAMA);
    let generic = Markup::of(GENERIC);
    assert_eq!(generic.calls, Some(CallStyle::GENERIC));
    let call = r#"{"name": "f", "parameters": {"a": "b"}}"#;
    let want = said("", "", &[("f", r#"{"a": "b"}"#)]);
    assert_eq!(read(&llama, "", &format!("<|python_tag|>{call}")), want);
    assert_eq!(read(&llama, "", &format!("Sure. <|python_tag|>{call}")).content, "Sure.");
    let two = said("", "", &[("f", r#"{"a": "b"}"#), ("f", r#"{"a": "b"}"#)]);
    for markup in [&llama, &generic] {
        assert_eq!(read(markup, "", &format!("\n{call}\n")), want);
        assert_eq!(read(markup, "", &format!("{call}; {call}")), two);
        assert_eq!(read(markup, "", &format!("[{call},\n {call}]")), two);
        let typed = r#"{"type": "function", "name": "f", "arguments": {"a": "b"}}"#;
        assert_eq!(read(markup, "", typed), want);
        for no_call in [
            " {\"name\": \"Anna\", \"age\": 7}",
            "{\"name\": \"Anna\"}",
            "{\"name\": \"Anna\"",
            "{\"city\": [1]} ",
            "[1] {\"name\"",
            "[]",
            "Use {\"name\": \"f\", \"parameters\": {}}",
            "{",
            "{ }",
        ] {
            assert_eq!(read(markup, "", no_call), said("", no_call, &[]));
        }
        assert_eq!(parse(markup, "", false, [call]), said("", call, &[]));
    }
    // JSON that is not a call is not held back until its end
    let mut parser = AnswerParser::new(&generic, "", tools());
    assert_eq!(parser.push("{\"city\": \"Bern"), [Part::Content("{\"city\": \"Bern".into())]);
    // arguments are streamed
    let mut parser = AnswerParser::new(&llama, "", tools());
    assert_eq!(parser.push("{\"name\": \"f\", \"parameters\": {\"a").len(), 2);
    assert_eq!(parser.push("b"), [Part::CallArguments { index: 0, text: "b".into() }]);
}

#[test]
fn mistral_calls() {
    let (nemo, new) = (Markup::of(NEMO), Markup::of(MISTRAL));
    let list = r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": "]"}, "id": "123456789"}, {"name": "g", "arguments": {}}]"#;
    let want = said("", "", &[("f", r#"{"a": "]"}"#), ("g", "{}")]);
    for markup in [&nemo, &new] {
        assert_eq!(read(markup, "", list), want);
        assert_eq!(read(markup, "", &format!("{list}\n")), want);
        assert_eq!(read(markup, "", "[TOOL_CALLS][] [TOOL"), said("", "[TOOL_CALLS][] [TOOL", &[]));
    }
    assert_eq!(
        read(
            &new,
            "",
            "[THINK]Hm.[/THINK]Look: [TOOL_CALLS]f[ARGS]{\"a\": \"]\"}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}"
        ),
        Whole { reasoning: "Hm.".into(), content: "Look:".into(), ..want }
    );
    for no_call in
        ["[TOOL_CALLS] is a token", "[TOOL_CALLS]f[ARGS]7", "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS]f(1)"]
    {
        assert_eq!(read(&new, "", no_call), said("", no_call, &[]));
    }
    assert_eq!(read(&new, "", "[TOOL_CALLS]f[ARGS]"), said("", "", &[("f", "")]));
    let long = format!("[TOOL_CALLS]{}", "x".repeat(300));
    let mut parser = AnswerParser::new(&new, "", tools());
    assert_eq!(parser.push(&long), [Part::Content(long)]);
}

#[test]
fn other_calls() {
    let deepseek = Markup::of(DEEPSEEK);
    let call = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>\
                <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let want = said("Hm.", "So:", &[("f", r#"{"a": 1}"#), ("g", "{}")]);
    assert_eq!(read(&deepseek, "<think>", &format!("Hm.</think>So: {call}")), want);

    let kimi = Markup::of(KIMI);
    let call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}\
                <|tool_call_end|><|tool_calls_section_end|>";
    assert_eq!(read(&kimi, "", call), said("", "", &[("f", "{}")]));
}

/// Calls in a style.
fn written(style: &CallStyle, calls: &[(String, String)]) -> String {
    let texts = style.texts();
    let call = |(name, arguments): &(String, String)| {
        let members = || serde_json::from_str::<Map<String, Value>>(arguments).expect("an object");
        let arguments = match texts.arguments {
            ArgumentForm::Json => arguments.clone(),
            ArgumentForm::Tags(tags) => {
                members().into_iter().map(|(key, value)| element(&tags, &key, value)).collect()
            }
            ArgumentForm::Literal(literal) => {
                let member = |(key, value): (String, Value)| match value {
                    Value::String(text) if !literal.quote.is_empty() => {
                        [key.as_str(), literal.assign, literal.quote, &text, literal.quote].concat()
                    }
                    value => format!("{key}{}{value}", literal.assign),
                };
                members().into_iter().map(member).collect::<Vec<_>>().join(",")
            }
        };
        [&texts.before_name, name, &texts.before_arguments, &arguments, &texts.after_arguments]
            .map(String::as_str)
            .concat()
    };
    let calls: Vec<String> = calls.iter().map(call).collect();
    [texts.open, calls.join(&texts.separator), texts.close].concat()
}

fn element(tags: &TagStyle, key: &str, value: Value) -> String {
    let given = value.clone();
    let (kind, value) = match value {
        Value::String(text) => (ValueKind::String, text),
        value => (ValueKind::Json, value.to_string()),
    };
    let known = [ValueKind::Schema, ValueKind::Elements, kind];
    let after_key =
        *tags.after_key.iter().find(|(_, told)| known.contains(told)).expect("the style has this kind");
    let value = if after_key.1 == ValueKind::Elements { nested(tags, given) } else { value };
    [tags.before_key, key, after_key.0, &value, &tags.end_of(key, after_key)].concat()
}

/// A value as text or elements.
fn nested(tags: &TagStyle, value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Array(items) => items.into_iter().map(|item| element(tags, ITEM, item)).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| element(tags, &key, value)).collect()
        }
        scalar => scalar.to_string(),
    }
}

#[test]
fn calls_are_written_in_the_style() {
    let style = Markup::of(HERMES).calls.unwrap();
    assert_eq!(style.form, CallForm::Object { name_key: "name", arguments_key: "arguments" });
    let calls = ["f", "g"].map(|name| (name.to_string(), "{}".to_string()));
    for (template, want) in [
        (
            HERMES,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        ),
        (LLAMA, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}"),
        (NEMO, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"),
        (GENERIC, "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]"),
    ] {
        assert_eq!(written(&Markup::of(template).calls.unwrap(), &calls), want);
    }
}
