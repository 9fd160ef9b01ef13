//! Forced tool calls, in the syntaxes of known models.

use serde_json::{Value, json};
use tern_engine::Constraint;
use tern_grammar::Grammar;
use tern_text::{ArgumentForm, CallTexts};

use crate::validate::validate;
use crate::vocabularies::{all, controls, stories};
use crate::walk::{allowed, spell, walk};

/// `BEGIN{"name": "the tool", "KEY": {...}}END`, or a list of such objects between one begin and one end.
struct Shape {
    begin: String,
    end: String,
    key: &'static str,
    list: bool,
}

fn shape(begin: &str, end: &str, key: &'static str, list: bool) -> Shape {
    Shape { begin: begin.into(), end: end.into(), key, list }
}

impl Shape {
    fn texts(&self) -> CallTexts {
        let Shape { begin, end, key, list } = self;
        let (outer, inner) =
            if *list { ((&**begin, &**end), ("", "")) } else { (("", ""), (&**begin, &**end)) };
        let (bracket, unbracket) = if *list { ("[", "]") } else { ("", "") };
        let separator = if *list {
            ", "
        } else if begin.is_empty() {
            ""
        } else {
            "\n"
        };
        CallTexts {
            open: format!("{}{bracket}", outer.0),
            before_name: format!("{}{{\"name\": \"", inner.0),
            before_arguments: format!("\", \"{key}\": "),
            arguments: ArgumentForm::Json,
            after_arguments: format!("}}{}", inner.1),
            separator: separator.into(),
            close: format!("{unbracket}{}", outer.1),
        }
    }
}

fn tools() -> Vec<(String, Value)> {
    vec![
        (
            "weather".into(),
            json!({
                "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}, "unit": {"enum": ["C", "F"]}},
                "required": ["city"], "additionalProperties": false,
                "$defs": {"city": {"type": "string", "maxLength": 10}},
            }),
        ),
        ("now".into(), json!({"type": "object", "properties": {}, "additionalProperties": false})),
        ("any".into(), json!({})),
        ("nothing".into(), Value::Null),
    ]
}

fn check(call: &Value, arguments_key: &str) {
    let tools = tools();
    let (_, schema) = tools.iter().find(|(name, _)| Some(name.as_str()) == call["name"].as_str()).unwrap();
    let arguments = &call[arguments_key];
    assert!(arguments.is_object(), "{call}");
    assert_eq!(call.as_object().unwrap().len(), 2, "{call}");
    if schema.is_object() {
        validate(schema, schema, arguments).unwrap();
    }
}

#[test]
fn calls_have_the_syntax_of_the_model() {
    for vocabulary in all() {
        for many in [false, true] {
            let mut most = 0;
            for shape in [
                shape("<tool_call>\n", "\n</tool_call>", "arguments", false),
                shape("", "", "parameters", false),
                shape("", "", "arguments", true),
                shape("calls: ", ".", "arguments", true),
            ] {
                let grammar = Grammar::Calls { texts: shape.texts(), tools: tools(), many };
                let compiled = vocabulary.compiler.compile(&grammar).unwrap();
                for seed in 0..20 {
                    let text = spell(vocabulary, &walk(vocabulary, &compiled, seed, &[]));
                    let inner = text.strip_prefix(&shape.begin).unwrap().strip_suffix(&shape.end).unwrap();
                    let calls: Vec<Value> = match shape.list {
                        true => serde_json::from_str(inner).unwrap(),
                        false if shape.begin.is_empty() => vec![serde_json::from_str(inner).unwrap()],
                        false => inner
                            .split(&format!("{}\n{}", shape.end, shape.begin))
                            .map(|call| serde_json::from_str(call).unwrap())
                            .collect(),
                    };
                    most = most.max(calls.len());
                    assert!(!calls.is_empty() && calls.len() <= if many { 16 } else { 1 }, "{text}");
                    calls.iter().for_each(|call| check(call, shape.key));
                }
            }
            assert_eq!(most > 1, many, "{}", vocabulary.name);
        }
    }
}

/// A control token in the markup is one token, not its spelling in text.
#[test]
fn control_tokens_of_the_markup_are_single_tokens() {
    for vocabulary in all() {
        let tokenizer = &vocabulary.tokenizer;
        let is_marker = |id: &u32| tokenizer.is_control(*id) && !tokenizer.eog().contains(id);
        let Some(marker) = (0..tokenizer.vocab_size() as u32).find(is_marker) else {
            println!("skipped: {} (every control token is an end token)", vocabulary.name);
            continue;
        };
        let spelling = tokenizer.token_text(marker).unwrap();
        for begin in [spelling.to_owned(), format!("x{spelling}y")] {
            let texts = shape(&begin, "", "arguments", true).texts();
            let compiled =
                vocabulary.compiler.compile(&Grammar::Calls { texts, tools: tools(), many: false }).unwrap();
            if begin == spelling {
                assert_eq!(allowed(&compiled.constraint().mask().unwrap()), [marker]);
            }
            for seed in 0..10 {
                let tokens = walk(vocabulary, &compiled, seed, &[marker]);
                assert_eq!(tokens.iter().filter(|&&id| id == marker).count(), 1);
                let text = spell(vocabulary, &tokens);
                let calls: Vec<Value> = serde_json::from_str(text.strip_prefix(&begin).unwrap()).unwrap();
                check(&calls[0], "arguments");
            }
        }
    }
}

/// A name and its arguments separated by markers, without JSON around both.
#[test]
fn calls_may_be_named_outside_of_json() {
    let texts = CallTexts {
        open: String::new(),
        before_name: "call ".into(),
        before_arguments: " with ".into(),
        arguments: ArgumentForm::Json,
        after_arguments: ".".into(),
        separator: " then ".into(),
        close: String::new(),
    };
    for vocabulary in all() {
        let grammar = Grammar::Calls { texts: texts.clone(), tools: tools(), many: false };
        let compiled = vocabulary.compiler.compile(&grammar).unwrap();
        for seed in 0..10 {
            let text = spell(vocabulary, &walk(vocabulary, &compiled, seed, &[]));
            let (name, rest) = text.strip_prefix("call ").unwrap().split_once(" with ").unwrap();
            let arguments: Value = serde_json::from_str(rest.strip_suffix('.').unwrap()).unwrap();
            check(&json!({"name": name, "arguments": arguments}), "arguments");
        }
    }
}

/// An end token after a call ends the text, like any other.
#[test]
fn an_end_token_of_the_markup_is_not_required() {
    let vocabulary = controls();
    for end in ["", "<|im_end|>"] {
        let texts = shape("x", end, "arguments", true).texts();
        let compiled =
            vocabulary.compiler.compile(&Grammar::Calls { texts, tools: tools(), many: false }).unwrap();
        for seed in 0..10 {
            let text = spell(vocabulary, &walk(vocabulary, &compiled, seed, &[]));
            let calls: Vec<Value> = serde_json::from_str(text.strip_prefix("x").unwrap()).unwrap();
            check(&calls[0], "arguments");
        }
    }
}

#[test]
fn tools_are_bounded() {
    let error = |tools: Vec<(String, Value)>| {
        let grammar = Grammar::Calls { texts: shape("", "", "arguments", false).texts(), tools, many: false };
        stories().compiler.compile(&grammar).unwrap_err().to_string()
    };
    let long = json!({"const": "a".repeat(70_000)});
    assert_eq!(error(vec![]), "the list of tools must not be empty");
    assert_eq!(error(vec![("a".into(), json!({})); 129]), "129 tools: at most 128 are allowed");
    assert_eq!(
        error(vec![("a".into(), long); 4]),
        "the list of tools has 280048 bytes: at most 262144 are allowed"
    );
    assert_eq!(
        error(vec![("a".repeat(65_537), json!({}))]),
        "the list of tool names has 65537 bytes: at most 65536 are allowed"
    );
    assert_eq!(
        error(vec![("a".into(), json!({"not": {}}))]),
        "tool `a`: the schema keyword `not` (at `#`) is not supported"
    );
}
