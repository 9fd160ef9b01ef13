//! Preparing a JSON schema for the parser: bounded, without annotations, and without
//! keywords it would ignore.

mod keywords;

use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::limits;

use keywords::{KEYWORDS, KeywordValue};

/// Whitespace in JSON: enough for indentation, but bounded, because models may repeat whitespace endlessly.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// The schema with the parser's options in it.
pub(crate) fn with_options(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
    }
    schema
}

/// Rejects schemas that exceed the limits on total size, number of objects or depth.
pub(crate) fn check_size<'a>(
    what: &'static str,
    schemas: impl IntoIterator<Item = &'a Value>,
    limit: usize,
) -> Result<(), GrammarError> {
    let (mut found, mut objects) = (0, 0);
    for schema in schemas {
        objects +=
            count_objects(schema, limits::DEPTH).ok_or(GrammarError::Depth { what, limit: limits::DEPTH })?;
        found += schema.to_string().len();
    }
    if found > limit {
        return Err(GrammarError::Size { what, found, limit });
    }
    if objects > limits::OBJECTS {
        let what = "objects in a schema";
        return Err(GrammarError::Count { what, found: objects, limit: limits::OBJECTS });
    }
    Ok(())
}

/// The number of objects; `None` if the value is nested more than `depth` levels deep.
fn count_objects(value: &Value, depth: usize) -> Option<usize> {
    match value {
        Value::Array(items) => {
            let depth = depth.checked_sub(1)?;
            items.iter().map(|item| count_objects(item, depth)).sum()
        }
        Value::Object(fields) => {
            let depth = depth.checked_sub(1)?;
            fields.values().map(|field| count_objects(field, depth)).sum::<Option<usize>>().map(|n| n + 1)
        }
        _ => Some(0),
    }
}

/// The schema without annotations; unsupported keywords are an error. Call [`check_size`] first.
pub(crate) fn clean(schema: &Value) -> Result<Value, GrammarError> {
    let mut at = String::from("#");
    match Cleaner.schema(schema, &mut at)? {
        // the parser reads its options from an object
        Value::Bool(true) => Ok(json!({})),
        Value::Bool(false) => {
            Err(GrammarError::Invalid { what: "JSON schema", why: "no value is valid under `false`".into() })
        }
        cleaned => Ok(cleaned),
    }
}

struct Cleaner;

impl Cleaner {
    fn schema(&self, schema: &Value, at: &mut String) -> Result<Value, GrammarError> {
        let fields = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(fields) => fields,
            _ => return Err(wrong("schema", at, "an object or a boolean")),
        };
        let mut out = Map::new();
        for (keyword, value) in fields {
            let kind = KEYWORDS.iter().find(|(name, _)| name == keyword).map(|&(_, kind)| kind);
            let cleaned = match kind {
                Some(KeywordValue::Data) => value.clone(),
                Some(KeywordValue::Pattern) => {
                    check_pattern(value.as_str().unwrap_or_default())?;
                    value.clone()
                }
                Some(KeywordValue::Schema) => self.inside(keyword, value, at)?,
                Some(KeywordValue::List) => self.list(keyword, value, at)?,
                Some(KeywordValue::Map) => self.map(keyword, value, at)?,
                Some(KeywordValue::SchemaOrList) if value.is_array() => self.list(keyword, value, at)?,
                Some(KeywordValue::SchemaOrList) => self.inside(keyword, value, at)?,
                Some(KeywordValue::Reference) => self.reference(value, at)?.into(),
                Some(KeywordValue::Annotation) => continue,
                Some(KeywordValue::RootAnnotation) if at == "#" => continue,
                Some(KeywordValue::False) if value == &Value::Bool(false) => continue,
                None if keyword.starts_with("x-") && keyword != "x-guidance" => continue,
                _ => return Err(GrammarError::Keyword { keyword: keyword.clone(), at: at.clone() }),
            };
            // with a discriminator at most one option can match, so `anyOf` is equivalent
            let exclusive =
                keyword == "oneOf" && fields.contains_key("discriminator") && !fields.contains_key("anyOf");
            out.insert(if exclusive { "anyOf".into() } else { keyword.clone() }, cleaned);
        }
        Ok(out.into())
    }

    /// The schema one level deeper.
    fn inside(&self, step: &str, schema: &Value, at: &mut String) -> Result<Value, GrammarError> {
        let len = at.len();
        at.push('/');
        at.push_str(&step.replace('~', "~0").replace('/', "~1"));
        let cleaned = self.schema(schema, at)?;
        at.truncate(len);
        Ok(cleaned)
    }

    fn list(&self, keyword: &str, value: &Value, at: &mut String) -> Result<Value, GrammarError> {
        let Value::Array(schemas) = value else { return Err(wrong(keyword, at, "a list of schemas")) };
        let len = at.len();
        at.push('/');
        at.push_str(keyword);
        let cleaned = schemas.iter().enumerate().map(|(n, schema)| self.inside(&n.to_string(), schema, at));
        let cleaned = cleaned.collect::<Result<Vec<_>, _>>()?;
        at.truncate(len);
        Ok(cleaned.into())
    }

    fn map(&self, keyword: &str, value: &Value, at: &mut String) -> Result<Value, GrammarError> {
        let Value::Object(schemas) = value else { return Err(wrong(keyword, at, "an object of schemas")) };
        if keyword == "patternProperties" && schemas.len() > limits::PATTERNS {
            let (what, found) = ("`patternProperties` in one object", schemas.len());
            return Err(GrammarError::Count { what, found, limit: limits::PATTERNS });
        }
        let len = at.len();
        at.push('/');
        at.push_str(keyword);
        let mut out = Map::new();
        for (name, schema) in schemas {
            if keyword == "patternProperties" {
                check_pattern(name)?;
            }
            out.insert(name.clone(), self.inside(name, schema, at)?);
        }
        at.truncate(len);
        Ok(out.into())
    }

    /// The reference in the parser's syntax: names separated by slashes, without escapes.
    fn reference(&self, value: &Value, at: &str) -> Result<String, GrammarError> {
        let reference = value.as_str().ok_or_else(|| wrong("$ref", at, "a string"))?;
        let refused = || GrammarError::Reference { reference: reference.into(), at: at.into() };
        let path = reference.strip_prefix('#').ok_or_else(refused)?;
        let mut out = String::from("#");
        let Some(path) = path.strip_prefix('/').filter(|path| !path.is_empty()) else {
            return if path.is_empty() || path == "/" { Ok(out) } else { Err(refused()) };
        };
        for step in path.split('/') {
            let step = unescape(step).filter(|step| !step.contains('/')).ok_or_else(refused)?;
            out.push('/');
            out.push_str(&step);
        }
        Ok(out)
    }
}

fn check_pattern(pattern: &str) -> Result<(), GrammarError> {
    match pattern.len() {
        found if found <= limits::SCHEMA_PATTERN => Ok(()),
        found => {
            Err(GrammarError::Size { what: "pattern in the schema", found, limit: limits::SCHEMA_PATTERN })
        }
    }
}

fn wrong(keyword: &str, at: &str, want: &'static str) -> GrammarError {
    GrammarError::Value { keyword: keyword.into(), at: at.into(), want }
}

/// One step of a JSON pointer in a URL: `%20`, then `~0` and `~1`.
fn unescape(step: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(step.len());
    let mut rest = step.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*byte);
        }
    }
    Some(String::from_utf8(bytes).ok()?.replace("~1", "/").replace("~0", "~"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(schema: Value) -> String {
        check_size("JSON schema", [&schema], limits::TEXT)
            .and_then(|()| clean(&schema))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn annotations_are_removed_and_references_unescaped() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "x-order": 1,
            "properties": {"title": {"type": "string", "description": "kept by name", "nullable": false},
                           "next": {"$ref": "#"}, "a b": {"$ref": "#/$defs/a%20b~0"}},
            "$defs": {"a b~": {"const": {"title": 1}}},
        });
        let want = json!({
            "properties": {"title": {"type": "string"},
                           "next": {"$ref": "#"}, "a b": {"$ref": "#/$defs/a b~"}},
            "$defs": {"a b~": {"const": {"title": 1}}},
        });
        assert_eq!(clean(&schema), Ok(want));
    }

    #[test]
    fn unsupported_keywords_are_named() {
        for (schema, want) in [
            (
                json!({"items": {"uniqueItems": true}}),
                "the schema keyword `uniqueItems` (at `#/items`) is not supported",
            ),
            (json!({"if": true}), "the schema keyword `if` (at `#`) is not supported"),
            (
                json!({"properties": {"a/b": {"anyOf": [true, {"minlength": 3}]}}}),
                "the schema keyword `minlength` (at `#/properties/a~1b/anyOf/1`) is not supported",
            ),
            (json!({"x-guidance": {}}), "the schema keyword `x-guidance` (at `#`) is not supported"),
            (json!({"items": {"$id": "a"}}), "the schema keyword `$id` (at `#/items`) is not supported"),
            (json!({"anyOf": {}}), "the schema keyword `anyOf` (at `#`) must be a list of schemas"),
            (
                json!({"properties": []}),
                "the schema keyword `properties` (at `#`) must be an object of schemas",
            ),
            (json!(3), "the schema keyword `schema` (at `#`) must be an object or a boolean"),
            (json!(false), "invalid JSON schema: no value is valid under `false`"),
        ] {
            assert_eq!(error(schema), want);
        }
    }

    #[test]
    fn references_out_of_the_schema_are_rejected() {
        for reference in [
            "https://example.org/schema.json",
            "file:///etc/passwd",
            "other.json#/a",
            "#anchor",
            "",
            "#/a%2Fb",
            "#/a%zz",
        ] {
            assert_eq!(
                error(json!({"items": {"$ref": reference}})),
                format!(
                    "`$ref` to `{reference}` (at `#/items`): only references into the same schema (`#/...`) are supported"
                )
            );
        }
    }

    #[test]
    fn size_and_depth_are_bounded() {
        let mut deep = json!(true);
        for _ in 0..65 {
            deep = json!({ "items": deep });
        }
        assert_eq!(error(deep.clone()), "the JSON schema is nested more than 64 levels deep");
        assert!(check_size("JSON schema", [&deep["items"]], limits::TEXT).is_ok());
        assert_eq!(
            error(json!({"const": "a".repeat(65536)})),
            "the JSON schema has 65548 bytes: at most 65536 are allowed"
        );
        assert_eq!(
            error(json!({"enum": vec![json!({}); 8192]})),
            "8193 objects in a schema: at most 8192 are allowed"
        );
        let long = "a".repeat(4097);
        for schema in [json!({ "pattern": long.clone() }), json!({"patternProperties": {long: true}})] {
            assert_eq!(error(schema), "the pattern in the schema has 4097 bytes: at most 4096 are allowed");
        }
        let patterns: Map<String, Value> = (0..17).map(|n| (format!("^{n}$"), json!(true))).collect();
        assert_eq!(
            error(json!({ "patternProperties": patterns })),
            "17 `patternProperties` in one object: at most 16 are allowed"
        );
    }
}
