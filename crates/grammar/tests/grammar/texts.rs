//! Random texts under each kind of grammar match the grammar.

use regex_automata::meta::Regex;
use serde_json::{Value, json};
use tern_engine::Constraint;
use tern_grammar::{CompiledGrammar, Grammar, GrammarCompiler, GrammarConstraint};

use crate::validate::validate;
use crate::vocabularies::{Vocabulary, all, stories};
use crate::walk::{allowed, spell, walk};

/// Random texts with a fixed seed.
fn texts<'a>(
    vocabulary: &'a Vocabulary,
    grammar: &Grammar,
    count: u64,
) -> impl Iterator<Item = String> + use<'a> {
    let compiled =
        vocabulary.compiler.compile(grammar).unwrap_or_else(|error| panic!("{error}: {grammar:?}"));
    (0..count).map(move |seed| spell(vocabulary, &walk(vocabulary, &compiled, seed, &[])))
}

fn schemas() -> Vec<Value> {
    vec![
        json!({
            "type": "object", "title": "A person",
            "properties": {
                "name": {"type": "string", "minLength": 2, "maxLength": 12},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "height": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
                "kind": {"enum": ["cat", "dog", 3, null, "a \"quoted\" one"]},
                "alive": {"type": "boolean"},
            },
            "required": ["name", "age", "kind"], "additionalProperties": false,
        }),
        json!({
            "type": "array", "minItems": 1, "maxItems": 3,
            "items": {"type": "array", "items": {"type": "object", "required": ["x"], "additionalProperties": false,
                "properties": {"x": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}}}, "maxItems": 2},
        }),
        json!({
            "type": "object", "required": ["code", "day", "id", "even"], "additionalProperties": {"type": "null"},
            "properties": {
                "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
                "day": {"type": "string", "format": "date"},
                "id": {"type": "string", "format": "uuid"},
                "word": {"type": "string", "pattern": "^[xy]*a.b"},
                "even": {"type": "integer", "multipleOf": 2, "minimum": -10, "maximum": 1000},
            },
        }),
        json!({
            "anyOf": [
                {"type": "object", "properties": {"ok": {"const": true}, "n": {"type": ["integer", "null"]}},
                 "required": ["ok"], "additionalProperties": false},
                {"type": "string", "enum": ["none", "naïve \u{1F600}"]},
                {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": {"a": [1, 2]}}], "items": false,
                 "minItems": 2},
            ],
        }),
        json!({
            "$defs": {
                "node": {"type": "object", "required": ["value", "next"], "additionalProperties": false,
                         "properties": {"value": {"$ref": "#/$defs/small"},
                                        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}},
                "small": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "$ref": "#/$defs/node",
        }),
        json!({
            "type": "object", "properties": {"a": {"allOf": [{"minimum": 3}, {"type": "integer", "maximum": 5}]}},
            "patternProperties": {"^n_[a-z]{1,3}$": {"type": "boolean"}},
            "required": ["a"], "additionalProperties": false,
        }),
        json!({
            "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "discriminator": {"propertyName": "kind"},
            "$defs": {
                "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"], "additionalProperties": false},
                "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"], "additionalProperties": false},
            },
        }),
        json!({"type": "object", "minProperties": 1, "maxProperties": 3, "additionalProperties": {"type": "integer"}}),
        json!(true),
    ]
}

#[test]
fn json_follows_its_schema() {
    for vocabulary in all() {
        for schema in schemas() {
            for text in texts(vocabulary, &Grammar::JsonSchema(schema.clone()), 15) {
                let value: Value =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                if let Err(error) = validate(&schema, &schema, &value) {
                    panic!("{}: {error}: {text}", vocabulary.name);
                }
            }
        }
    }
}

#[test]
fn any_object_is_an_object() {
    for vocabulary in all() {
        for text in texts(vocabulary, &Grammar::JsonObject, 30) {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(value.is_object(), "{text}");
        }
    }
}

#[test]
fn a_regex_matches_the_whole_text() {
    for vocabulary in all() {
        for pattern in [
            r"[a-z]{3,8}(-[0-9]+)?",
            r"^(yes|no|maybe so)$",
            r"\+?[0-9]{1,3} \([0-9]{3}\) [0-9/\-]{4}",
            r"(?i)tern|[äöü]{2,4}ß",
            "line one\n\tline /two/\\\\",
            r".{5,10}",
        ] {
            let judge = Regex::new(&format!("^(?:{pattern})$")).unwrap();
            for text in texts(vocabulary, &Grammar::Regex(pattern.into()), 40) {
                assert!(judge.is_match(text.as_str()), "{}: {pattern}: {text:?}", vocabulary.name);
            }
        }
    }
}

#[test]
fn a_choice_is_one_of_the_choices() {
    // one is a prefix of another; one looks like a control token; one is hard to quote
    let choices: Vec<String> =
        ["a", "ab", "abc", "</s>", "<|im_end|>", "two\nlines \"quoted\" \\ \u{7f}\u{1}", "ünïcödé 🙂"]
            .map(Into::into)
            .into();
    for vocabulary in all() {
        let mut seen = std::collections::BTreeSet::new();
        for text in texts(vocabulary, &Grammar::Choice(choices.clone()), 200) {
            assert!(choices.contains(&text), "{text:?}");
            seen.insert(text);
        }
        assert_eq!(seen.len(), choices.len(), "{}: only {seen:?}", vocabulary.name);
    }
}

/// Forced text has the tokens of the tokenizer, whatever its length.
#[test]
fn forced_text_has_the_tokens_of_the_tokenizer() {
    let text: String = (0..300).map(|n| format!("The {n}th little bird sang. ")).collect();
    let text = &text[..1900];
    for vocabulary in all() {
        let compiled = vocabulary.compiler.compile(&Grammar::Choice(vec![text.into()])).unwrap();
        let tokens = walk(vocabulary, &compiled, 1, &[]);
        assert_eq!(spell(vocabulary, &tokens), text);
        if !vocabulary.tokenizer.strips_space() {
            let own = vocabulary.tokenizer.encode(text, false, false);
            let same = tokens.iter().zip(&own).take_while(|(a, b)| a == b).count();
            assert!(same + 2 > own.len(), "{}: the first {same} of {}", vocabulary.name, own.len());
        }
    }
}

#[test]
fn lark_grammars_are_followed() {
    let grammar = r#"
        start: sum
        sum: product (("+" | "-") product)*
        product: atom ("*" atom)~0..3
        atom: NUMBER | "(" sum ")"
        NUMBER: /[0-9]{1,3}/
    "#;
    for vocabulary in all() {
        for text in texts(vocabulary, &Grammar::Lark(grammar.into()), 60) {
            assert_eq!(text.matches('(').count(), text.matches(')').count(), "{text}");
            assert!(
                Regex::new(r"^[(]*[0-9]{1,3}([)]*[-+*][(]*[0-9]{1,3})*[)]*$")
                    .unwrap()
                    .is_match(text.as_str()),
                "{text}"
            );
        }
    }
}

/// End tokens are allowed if the text is complete, and nothing else if it cannot continue.
#[test]
fn end_tokens_are_allowed_where_the_text_is_complete() {
    let Vocabulary { tokenizer, compiler, .. } = stories();
    let one = |byte: &str| {
        (0..tokenizer.vocab_size() as u32)
            .find(|&id| !tokenizer.is_control(id) && tokenizer.token_bytes(id, false) == byte.as_bytes())
            .unwrap()
    };
    let ends: Vec<u32> = tokenizer.eog().iter().copied().collect();

    let mut constraint = compiler.compile(&Grammar::Regex("ab*".into())).unwrap().constraint();
    assert!(!allowed(&constraint.mask().unwrap()).contains(&ends[0]));
    assert_eq!(constraint.accept(one("a")), Ok(false));
    let mask = allowed(&constraint.mask().unwrap());
    assert!(ends.iter().all(|end| mask.contains(end)) && mask.contains(&one("b")));

    let mut constraint = compiler.compile(&Grammar::Regex("ab?".into())).unwrap().constraint();
    assert_eq!(constraint.accept(one("a")), Ok(false));
    assert_eq!(constraint.accept(one("b")), Ok(true));
    assert_eq!(allowed(&constraint.mask().unwrap()), ends);

    let mut constraint = compiler.compile(&Grammar::JsonObject).unwrap().constraint();
    assert_eq!(constraint.accept(one("{")), Ok(false));
    assert_eq!(constraint.accept(one("}")), Ok(true));
}

#[test]
fn a_token_that_is_not_allowed_is_an_error() {
    let Vocabulary { tokenizer, compiler, .. } = stories();
    let compiled = compiler.compile(&Grammar::Choice(vec!["yes".into()])).unwrap();
    for token in [tokenizer.id_of("no").unwrap_or(300), *tokenizer.eog().first().unwrap(), u32::MAX] {
        let mut constraint = compiled.constraint();
        let error = constraint.accept(token).unwrap_err();
        assert!(
            error.starts_with("the grammar allows no continuation: ") && !error.contains('\n'),
            "{error}"
        );
        // the error persists
        assert!(constraint.mask().is_err());
        assert!(constraint.accept(token).is_err());
    }
}

/// Texts of one compiled grammar are independent.
#[test]
fn each_text_has_its_own_state() {
    let vocabulary = stories();
    let compiled = vocabulary.compiler.compile(&Grammar::JsonSchema(schemas()[0].clone())).unwrap();
    let alone: Vec<Vec<u32>> = (0..4).map(|seed| walk(vocabulary, &compiled, seed, &[])).collect();
    let mut constraints: Vec<GrammarConstraint> = alone.iter().map(|_| compiled.constraint()).collect();
    for step in 0..alone.iter().map(Vec::len).max().unwrap() {
        for (text, constraint) in alone.iter().zip(&mut constraints) {
            if let Some(&token) = text.get(step) {
                assert!(allowed(&constraint.mask().unwrap()).contains(&token));
                constraint.accept(token).unwrap();
            }
        }
    }
}

#[test]
fn types_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<GrammarCompiler>();
    shared::<CompiledGrammar>();
    sent::<GrammarConstraint>();
}
