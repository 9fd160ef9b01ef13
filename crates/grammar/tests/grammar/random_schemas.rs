//! Texts under a random schema are valid, if the schema compiles.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tern_grammar::Grammar;

use crate::validate::validate;
use crate::vocabularies::stories;
use crate::walk::{spell, walk};

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": ["null", "integer"]})),
        Just(json!({"$ref": "#/$defs/word"})),
        (-50i64..50, 0i64..50)
            .prop_map(|(low, span)| json!({"type": "integer", "minimum": low, "maximum": low + span})),
        (-50i64..50).prop_map(|low| json!({"type": "number", "exclusiveMinimum": low, "maximum": low + 3})),
        (1u32..9)
            .prop_map(|step| json!({"type": "integer", "multipleOf": step, "minimum": 0, "maximum": 99})),
        (0usize..4, 0usize..4)
            .prop_map(|(low, span)| json!({"type": "string", "minLength": low, "maxLength": low + span})),
        "[ -~]{0,5}".prop_map(|text| json!({ "const": text })),
        prop::collection::vec("[a-c\"\\\\ü]{1,3}", 1..4).prop_map(|texts| json!({ "enum": texts })),
        Just(json!({"type": "string", "pattern": "^[ab]+(-[0-9]{2})?$"})),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 24, 4, |inner| {
        let properties = prop::collection::vec(("[a-d]{1,2}", inner.clone(), any::<bool>()), 0..4);
        prop_oneof![
            (inner.clone(), 0usize..3, 0usize..3).prop_map(
                |(items, low, span)| json!({"type": "array", "items": items, "minItems": low, "maxItems": low + span})
            ),
            prop::collection::vec(inner.clone(), 1..3)
                .prop_map(|items| json!({"type": "array", "minItems": items.len(), "prefixItems": items, "items": false})),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|options| json!({ "anyOf": options })),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|options| json!({ "oneOf": options })),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| json!({ "allOf": parts })),
            (properties, prop_oneof![Just(json!(false)), inner]).prop_map(|(properties, others)| {
                let required: Vec<&str> =
                    properties.iter().filter(|(.., required)| *required).map(|(name, ..)| name.as_str()).collect();
                let required = json!(required);
                let properties: Map<String, Value> =
                    properties.into_iter().map(|(name, schema, _)| (name, schema)).collect();
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": others})
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn texts_follow_schemas(mut schema in schema(), seed: u64) {
        schema["$defs"] = json!({"word": {"type": "string", "pattern": "^[a-z]{1,4}$"}});
        // a random schema may be contradictory, or have a `oneOf` with overlapping options
        if let Ok(compiled) = stories().compiler.compile(&Grammar::JsonSchema(schema.clone())) {
            let text = spell(stories(), &walk(stories(), &compiled, seed, &[]));
            let value: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(validate(&schema, &schema, &value), Ok(()), "{}", text);
        }
    }
}
