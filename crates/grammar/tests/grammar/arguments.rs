//! Forced calls whose arguments are not JSON: random texts under the grammar are parsed
//! back and follow the schema.

use std::sync::Arc;

use serde_json::{Value, json};
use tern_engine::Constraint;
use tern_grammar::Grammar;
use tern_text::{AnswerParser, ArgumentForm, Markup, Part, Tokenizer, ToolSchemas, ValueKind};

use crate::validate::validate;
use crate::vocabularies::{all, controls};
use crate::walk::{allowed, spell, walk};

/// Minimal templates that identify a style.
const STYLES: [(&str, &str); 12] = [
    ("Qwen3-Coder", "<tool_call>\n<function=f>\n<parameter=a>\n</parameter>"),
    ("Seed-OSS", "<seed:tool_call> <function= <parameter="),
    ("GLM 4.6", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>"),
    ("GLM 4.7", "<tool_call>f<arg_key>a</arg_key><arg_value>"),
    ("MiniMax M2", "<minimax:tool_call> <invoke name= <parameter name="),
    ("MiniMax M3", "]<]minimax[>[ <invoke name="),
    ("MiniCPM 5", "<function name= <param name="),
    ("DeepSeek V3.2", "<｜DSML｜function_calls>"),
    ("Kimi K3", "'<|open|>' open_tag('call'"),
    ("Gemma 4", "<|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|>"),
    ("LFM 2", "<|tool_call_start|>["),
    ("OLMo 3", "<function_calls> </function_calls>"),
];

/// A style whose calls are named by the header of a message, and have JSON.
const FUNCTIONARY: (&str, &str) = ("functionary 3.2", ">>>all\\n >>>${recipient}");

fn tools() -> Vec<(String, Value)> {
    let text = json!({"type": "string", "maxLength": 8});
    let weather = json!({
        "type": "object", "additionalProperties": false, "required": ["city", "days"],
        "properties": {
            "city": {"$ref": "#/$defs/city"}, "unit": {"enum": ["C", "CF"]}, "days": {"type": "integer", "maximum": 99},
            "ok": {"type": "boolean"}, "note": text,
        },
        "$defs": {"city": {"type": "string", "maxLength": 6}},
    });
    let deep = json!({
        "type": "object", "properties": {"list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
        "required": ["list"],
    });
    let nested = json!({
        "type": "object", "required": ["item", "any"],
        "properties": {
            "item": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"$ref": "#/$defs/point"}},
            "any": {"type": "array", "maxItems": 2}, "tree": {"$ref": "#/$defs/tree"},
        },
        "$defs": {
            "point": {"type": "object", "required": ["x"], "additionalProperties": false,
                "properties": {"x": {"type": "integer", "maximum": 99}, "name": {"type": "string", "maxLength": 4}}},
            "tree": {"type": "object", "additionalProperties": false,
                "properties": {"leaves": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/tree"}}}},
        },
    });
    let optional = json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}});
    let named = |(name, schema): (&str, Value)| (name.to_string(), schema);
    [
        ("weather", weather),
        ("deep", deep),
        ("nested", nested),
        ("optional", optional),
        ("nothing", Value::Null),
    ]
    .map(named)
    .to_vec()
}

fn calls_in(markup: &Markup, answer: &str) -> (Vec<(String, String)>, String) {
    let tools = tools();
    let schemas = ToolSchemas::new(tools.iter().map(|(name, schema)| (name.as_str(), schema)));
    let mut parser = AnswerParser::new(markup, "", Some(Arc::new(schemas)));
    let mut parts = parser.push(answer);
    parts.extend(parser.finish());
    let (mut calls, mut content) = (Vec::<(String, String)>::new(), String::new());
    for part in parts {
        match part {
            Part::CallBegin { name, .. } => calls.push((name, String::new())),
            Part::CallArguments { index, text } => calls[index].1 += &text,
            Part::Content(text) | Part::Reasoning(text) => content += &text,
        }
    }
    (calls, content)
}

#[test]
fn arguments_have_the_syntax_of_the_model() {
    for vocabulary in all().iter().chain([controls()]) {
        let markers: Vec<u32> = (0..vocabulary.tokenizer.vocab_size() as u32).collect();
        for (style, template) in STYLES.into_iter().chain([FUNCTIONARY]) {
            let markup = Markup::of(template);
            for many in [false, true] {
                let texts = markup.calls.unwrap().texts();
                let mut offered = tools();
                // objects among literals have any members, or any whitespace
                let literal = matches!(texts.arguments, ArgumentForm::Literal(_));
                offered.retain(|(name, _)| name != "nested" || !literal);
                let grammar = Grammar::Calls { texts, tools: offered, many };
                let compiled = vocabulary.compiler.compile(&grammar).unwrap();
                for seed in 0..12 {
                    let text = spell(vocabulary, &walk(vocabulary, &compiled, seed, &markers));
                    let (calls, content) = calls_in(&markup, &text);
                    assert_eq!(content, "", "{style}: {text}");
                    assert!(!calls.is_empty() && (many || calls.len() == 1), "{style}: {text}");
                    for (name, arguments) in calls {
                        let tools = tools();
                        let (_, schema) = tools.iter().find(|(tool, _)| *tool == name).unwrap();
                        let arguments: Value = serde_json::from_str(&arguments).unwrap_or_else(|error| {
                            panic!("{style}: {error} in {arguments}: {text}");
                        });
                        assert!(arguments.is_object(), "{style}: {text}");
                        if schema.is_object() {
                            validate(schema, schema, &arguments)
                                .unwrap_or_else(|why| panic!("{style}: {why}: {text}"));
                        }
                    }
                }
            }
        }
    }
}

/// The tokens of a text, without the space that some tokenizers add before it.
fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let before = tokenizer.encode("\n", false, true);
    let all = tokenizer.encode(&["\n", text].concat(), false, true);
    all.strip_prefix(&before[..]).map_or_else(|| tokenizer.encode(text, false, true), <[u32]>::to_vec)
}

/// A text may contain anything but what ends it.
#[test]
fn strings_are_free_text() {
    let tool = |schema: Value| {
        vec![("f".to_string(), json!({"type": "object", "properties": {"a": schema}, "required": ["a"]}))]
    };
    for vocabulary in all().iter().chain([controls()]) {
        let tokenizer = &vocabulary.tokenizer;
        for (style, template) in STYLES {
            let markup = Markup::of(template);
            let texts = markup.calls.unwrap().texts();
            let grammar =
                Grammar::Calls { texts: texts.clone(), tools: tool(json!({"type": "string"})), many: false };
            let compiled = vocabulary.compiler.compile(&grammar).unwrap();
            let quoted = |text: &str| match texts.arguments {
                ArgumentForm::Json => text.to_string(),
                ArgumentForm::Tags(tags) => {
                    let after_key =
                        *tags.after_key.iter().find(|(_, kind)| *kind != ValueKind::Cdata).unwrap();
                    [tags.before_key, "a", after_key.0, text, &tags.end_of("a", after_key)].concat()
                }
                ArgumentForm::Literal(literal) if literal.quote.is_empty() => {
                    format!("a={}", Value::from(text))
                }
                ArgumentForm::Literal(literal) => ["a:", literal.quote, text, literal.quote].concat(),
            };
            for text in ["", "x", "<b> \"q\" </b>\n\nä", "</para <|"] {
                let answer = [
                    &texts.open,
                    &texts.before_name,
                    "f",
                    &texts.before_arguments,
                    &quoted(text),
                    &texts.after_arguments,
                    &texts.close,
                ]
                .concat();
                let mut constraint = compiled.constraint();
                let ids = encode(tokenizer, &answer);
                for &id in &ids {
                    let mask = constraint.mask().unwrap();
                    assert!(allowed(&mask).contains(&id), "{style} in {}: {answer:?}", vocabulary.name);
                    constraint.accept(id).unwrap();
                }
                let (calls, content) = calls_in(&markup, &answer);
                assert_eq!((calls.len(), content.as_str()), (1, ""), "{style}: {answer:?}");
                let arguments: Value = serde_json::from_str(&calls[0].1).unwrap();
                assert_eq!(arguments, json!({"a": text}), "{style}");
            }
        }
    }
}
