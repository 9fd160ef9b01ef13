//! Forced calls of tools, in the shapes that models know.

use serde_json::{Value, json};
use tern_engine::Rules;
use tern_grammar::{CallShape, Grammar};

use crate::validate::validate;
use crate::vocabularies::{all, stories};
use crate::walk::{allowed, spell, walk};

fn shape(begin: &str, end: &str, arguments_key: &str, list: bool) -> CallShape {
    CallShape {
        begin: begin.into(),
        end: end.into(),
        name_key: "name".into(),
        arguments_key: arguments_key.into(),
        list,
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
fn calls_come_in_their_shape() {
    for vocabulary in all() {
        for many in [false, true] {
            let mut most = 0;
            for shape in [
                shape("<tool_call>\n", "\n</tool_call>", "arguments", false),
                shape("", "", "parameters", false),
                shape("", "", "arguments", true),
                shape("calls: ", ".", "arguments", true),
            ] {
                let grammar = Grammar::Calls { shape: shape.clone(), tools: tools(), many };
                let compiled = vocabulary.grammars.compile(&grammar).unwrap();
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
                    calls.iter().for_each(|call| check(call, &shape.arguments_key));
                }
            }
            assert_eq!(most > 1, many, "{}", vocabulary.name);
        }
    }
}

/// A control token in the markup is that token, and not its spelling.
#[test]
fn control_tokens_of_the_markup_are_themselves() {
    for vocabulary in all() {
        let tokenizer = &vocabulary.tokenizer;
        let is_marker = |id: &u32| tokenizer.is_control(*id) && !tokenizer.eog().contains(id);
        let Some(marker) = (0..tokenizer.vocab_size() as u32).find(is_marker) else {
            println!("skipped: {} (every control token ends a text)", vocabulary.name);
            continue;
        };
        let spelling = tokenizer.token_text(marker).unwrap();
        for begin in [spelling.to_owned(), format!("x{spelling}y")] {
            let shape = shape(&begin, "", "arguments", true);
            let compiled =
                vocabulary.grammars.compile(&Grammar::Calls { shape, tools: tools(), many: false }).unwrap();
            if begin == spelling {
                assert_eq!(allowed(&compiled.rules().mask().unwrap()), [marker]);
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

#[test]
fn tools_are_bounded() {
    let error = |tools: Vec<(String, Value)>| {
        let grammar = Grammar::Calls { shape: shape("", "", "arguments", false), tools, many: false };
        stories().grammars.compile(&grammar).unwrap_err().to_string()
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
