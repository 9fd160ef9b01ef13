//! Answers: the first line has the markers of a chat template, the rest is the answer.

use std::sync::Arc;

use serde_json::json;
use tern_text::{AnswerParser, Markup, Part, ToolSchemas};

use super::Run;

pub(super) const WORDS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<parameter=a>\n",
    "\n</parameter>",
    "</function>",
    "<arg_key>a</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<think>",
    "</think>",
    "<|channel|>analysis",
    "<|channel|>commentary to=functions.f",
    "<|message|>",
    "<|end|>",
    "<|start|>assistant",
    "<|tool_call>call:f{",
    "<|\"|>",
    "<tool_call|>",
    "<|tool_call_start|>[f(a='",
    "{\"name\": \"f\", \"arguments\": {",
    "a=\"\\ud800",
    "}}",
];

/// Parses the answer at once and in small pieces, with equal results.
pub(super) fn start() -> Run {
    let schema = json!({"properties": {"a": {"type": "string"}, "b": {"type": "object"}}});
    let tools = Arc::new(ToolSchemas::new([("f", &schema)]));
    Box::new(move |input| {
        let text = String::from_utf8_lossy(input);
        let (template, answer) = text.split_once('\n').unwrap_or(("", &text));
        let markup = Markup::of(template);
        let parse = |pieces: &mut dyn Iterator<Item = &str>, tools: Option<Arc<ToolSchemas>>| {
            let mut parser = AnswerParser::new(&markup, "", tools);
            let mut parts: Vec<Part> = pieces.flat_map(|piece| parser.push(piece)).collect();
            parts.extend(parser.finish());
            joined(parts)
        };
        for tools in [Some(Arc::clone(&tools)), None] {
            let whole = parse(&mut [answer].into_iter(), tools.clone());
            let mut pieces = answer.split_inclusive(['<', '>', '\n', '"', '\'', ':']);
            assert_eq!(parse(&mut pieces, tools), whole, "the result must not depend on the pieces");
        }
    })
}

/// Reasoning, content, and names and arguments of calls.
fn joined(parts: Vec<Part>) -> (String, String, Vec<(String, String)>) {
    let (mut reasoning, mut content, mut calls) =
        (String::new(), String::new(), Vec::<(String, String)>::new());
    for part in parts {
        match part {
            Part::Reasoning(text) => reasoning += &text,
            Part::Content(text) => content += &text,
            Part::CallBegin { name, .. } => calls.push((name, String::new())),
            Part::CallArguments { index, text } => calls[index].1 += &text,
        }
    }
    (reasoning, content, calls)
}
