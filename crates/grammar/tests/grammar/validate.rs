//! A minimal JSON schema validator, written from the specification.

use regex_automata::meta::Regex;
use serde_json::Value;

/// The first violation, if any.
pub(crate) fn validate(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(fields) = schema else {
        return if schema == &Value::Bool(false) {
            Err(format!("{value}: nothing is allowed here"))
        } else {
            Ok(())
        };
    };
    for (keyword, want) in fields {
        let number = |value: &Value| value.as_f64().unwrap();
        let length = |value: &Value| value.as_u64().unwrap() as usize;
        let each = |schemas: &Value| -> Vec<bool> {
            schemas.as_array().unwrap().iter().map(|schema| validate(root, schema, value).is_ok()).collect()
        };
        let holds = match (keyword.as_str(), value) {
            ("$ref", _) => {
                let place = want.as_str().unwrap().strip_prefix('#').unwrap();
                validate(root, root.pointer(place).unwrap(), value)?;
                true
            }
            ("type", _) => match want {
                Value::Array(types) => types.iter().any(|name| is(name.as_str().unwrap(), value)),
                name => is(name.as_str().unwrap(), value),
            },
            ("const", _) => equal(want, value),
            ("enum", _) => want.as_array().unwrap().iter().any(|want| equal(want, value)),
            ("anyOf", _) => each(want).contains(&true),
            ("oneOf", _) => each(want).iter().filter(|holds| **holds).count() == 1,
            ("allOf", _) => !each(want).contains(&false),
            ("minimum", Value::Number(_)) => number(value) >= number(want),
            ("maximum", Value::Number(_)) => number(value) <= number(want),
            ("exclusiveMinimum", Value::Number(_)) => number(value) > number(want),
            ("exclusiveMaximum", Value::Number(_)) => number(value) < number(want),
            ("multipleOf", Value::Number(_)) => (number(value) / number(want)).fract() == 0.0,
            ("minLength", Value::String(text)) => text.chars().count() >= length(want),
            ("maxLength", Value::String(text)) => text.chars().count() <= length(want),
            ("pattern", Value::String(text)) => Regex::new(want.as_str().unwrap()).unwrap().is_match(text),
            ("format", Value::String(text)) => match want.as_str().unwrap() {
                "date" => Regex::new(r"^\d{4}-\d\d-\d\d$").unwrap().is_match(text),
                "uuid" => Regex::new(r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")
                    .unwrap()
                    .is_match(text),
                other => panic!("format {other}"),
            },
            ("minItems", Value::Array(items)) => items.len() >= length(want),
            ("maxItems", Value::Array(items)) => items.len() <= length(want),
            ("prefixItems", Value::Array(items)) => {
                for (schema, item) in want.as_array().unwrap().iter().zip(items) {
                    validate(root, schema, item)?;
                }
                true
            }
            ("items", Value::Array(items)) => {
                let prefix = fields.get("prefixItems").map_or(0, |prefix| prefix.as_array().unwrap().len());
                for item in items.iter().skip(prefix) {
                    validate(root, want, item)?;
                }
                true
            }
            ("required", Value::Object(found)) => {
                want.as_array().unwrap().iter().all(|name| found.contains_key(name.as_str().unwrap()))
            }
            ("minProperties", Value::Object(found)) => found.len() >= length(want),
            ("maxProperties", Value::Object(found)) => found.len() <= length(want),
            ("properties", Value::Object(found)) => {
                for (name, schema) in want.as_object().unwrap() {
                    if let Some(field) = found.get(name) {
                        validate(root, schema, field)?;
                    }
                }
                true
            }
            ("patternProperties", Value::Object(found)) => {
                for (pattern, schema) in want.as_object().unwrap() {
                    let pattern = Regex::new(pattern).unwrap();
                    for (_, field) in found.iter().filter(|(name, _)| pattern.is_match(name.as_str())) {
                        validate(root, schema, field)?;
                    }
                }
                true
            }
            ("additionalProperties", Value::Object(found)) => {
                let named =
                    |name: &str| fields.get("properties").is_some_and(|named| named.get(name).is_some());
                let patterns: Vec<Regex> = fields
                    .get("patternProperties")
                    .map(|patterns| {
                        patterns.as_object().unwrap().keys().map(|key| Regex::new(key).unwrap()).collect()
                    })
                    .unwrap_or_default();
                for (name, field) in found {
                    if !named(name) && !patterns.iter().any(|pattern| pattern.is_match(name.as_str())) {
                        validate(root, want, field)?;
                    }
                }
                true
            }
            _ => true,
        };
        if !holds {
            return Err(format!("{value} does not follow `{keyword}`: {want}"));
        }
    }
    Ok(())
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    }
}

/// Numbers are equal by value: 1 and 1.0 are one number.
fn equal(want: &Value, value: &Value) -> bool {
    want == value || (want.is_number() && want.as_f64() == value.as_f64())
}

#[test]
fn invalid_values_are_rejected() {
    use serde_json::json;
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"items": {"enum": ["x", 1]}, "maxItems": 2}},
        "$defs": {"n": {"type": "integer", "minimum": 3}},
    });
    assert_eq!(validate(&schema, &schema, &json!({"a": 3, "b": ["x", 1.0]})), Ok(()));
    for bad in [
        json!([]),
        json!({}),
        json!({"a": 2}),
        json!({"a": 3.5}),
        json!({"a": 3, "c": 1}),
        json!({"a": 3, "b": ["y"]}),
        json!({"a": 3, "b": ["x", "x", "x"]}),
    ] {
        assert!(validate(&schema, &schema, &bad).is_err(), "{bad}");
    }
}
