//! A JSON schema as the parser may see it: bounded, without notes, and with no keyword that it would pass over.

use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::limits;

/// What stands behind a keyword.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// A value for the parser alone.
    Data,
    /// A regex.
    Pattern,
    /// A schema.
    Schema,
    /// A list of schemas.
    List,
    /// Schemas by name.
    Map,
    /// A schema or a list of them.
    SchemaOrList,
    /// A place in this schema.
    Reference,
    /// A note that no text depends on.
    Note,
    /// A note that counts for the whole document, and so stands at its root.
    RootNote,
    /// Followed only where it says false and so says nothing.
    False,
}

/// Every keyword that is taken; any other is an error.
const KEYWORDS: &[(&str, Role)] = &[
    ("type", Role::Data),
    ("const", Role::Data),
    ("enum", Role::Data),
    ("required", Role::Data),
    ("minItems", Role::Data),
    ("maxItems", Role::Data),
    ("minProperties", Role::Data),
    ("maxProperties", Role::Data),
    ("minLength", Role::Data),
    ("maxLength", Role::Data),
    ("pattern", Role::Pattern),
    ("format", Role::Data),
    ("minimum", Role::Data),
    ("maximum", Role::Data),
    ("exclusiveMinimum", Role::Data),
    ("exclusiveMaximum", Role::Data),
    ("multipleOf", Role::Data),
    ("additionalItems", Role::Schema),
    ("additionalProperties", Role::Schema),
    ("items", Role::SchemaOrList),
    ("prefixItems", Role::List),
    ("anyOf", Role::List),
    ("allOf", Role::List),
    ("oneOf", Role::List),
    ("properties", Role::Map),
    ("patternProperties", Role::Map),
    ("$defs", Role::Map),
    ("definitions", Role::Map),
    ("$ref", Role::Reference),
    ("$schema", Role::RootNote),
    ("$id", Role::RootNote),
    ("id", Role::RootNote),
    ("$anchor", Role::Note),
    ("$comment", Role::Note),
    ("title", Role::Note),
    ("description", Role::Note),
    ("default", Role::Note),
    ("examples", Role::Note),
    ("example", Role::Note),
    ("deprecated", Role::Note),
    ("readOnly", Role::Note),
    ("writeOnly", Role::Note),
    ("contentMediaType", Role::Note),
    ("contentEncoding", Role::Note),
    ("discriminator", Role::Note),
    ("uniqueItems", Role::False),
    ("nullable", Role::False),
];

/// Space between the parts of a JSON text: enough for indented JSON, not so much that a model can lose itself in it.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// The schema with the parser's options in it.
pub(crate) fn with_options(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
    }
    schema
}

/// Refuses schemas that are together too long or too many, or too deep to walk.
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

/// How many objects there are; none if something is more than `depth` levels deep.
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

/// The schema without notes; an error where a keyword would not be followed. It must be [`check_size`]d before.
pub(crate) fn clean(schema: &Value) -> Result<Value, GrammarError> {
    let mut at = String::from("#");
    match Cleaner.schema(schema, &mut at)? {
        // the parser reads its options from an object
        Value::Bool(true) => Ok(json!({})),
        Value::Bool(false) => {
            Err(GrammarError::Invalid { what: "JSON schema", why: "no text can follow `false`".into() })
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
            let role = KEYWORDS.iter().find(|(name, _)| name == keyword).map(|&(_, role)| role);
            let cleaned = match role {
                Some(Role::Data) => value.clone(),
                Some(Role::Pattern) => {
                    check_pattern(value.as_str().unwrap_or_default())?;
                    value.clone()
                }
                Some(Role::Schema) => self.inside(keyword, value, at)?,
                Some(Role::List) => self.list(keyword, value, at)?,
                Some(Role::Map) => self.map(keyword, value, at)?,
                Some(Role::SchemaOrList) if value.is_array() => self.list(keyword, value, at)?,
                Some(Role::SchemaOrList) => self.inside(keyword, value, at)?,
                Some(Role::Reference) => self.reference(value, at)?.into(),
                Some(Role::Note) => continue,
                Some(Role::RootNote) if at == "#" => continue,
                Some(Role::False) if value == &Value::Bool(false) => continue,
                None if keyword.starts_with("x-") && keyword != "x-guidance" => continue,
                _ => return Err(GrammarError::Keyword { keyword: keyword.clone(), at: at.clone() }),
            };
            // who names the property that tells the options apart says that no two hold at once
            let told_apart =
                keyword == "oneOf" && fields.contains_key("discriminator") && !fields.contains_key("anyOf");
            out.insert(if told_apart { "anyOf".into() } else { keyword.clone() }, cleaned);
        }
        Ok(out.into())
    }

    /// The schema one step further inside.
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

    /// The place as the parser reads it: names between slashes, nothing escaped.
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
    fn notes_go_and_references_are_read() {
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
    fn what_is_not_followed_is_named() {
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
            (json!(false), "the JSON schema cannot be used: no text can follow `false`"),
        ] {
            assert_eq!(error(schema), want);
        }
    }

    #[test]
    fn references_stay_inside() {
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
                    "`$ref` to `{reference}` (at `#/items`): only places in the same schema (`#/...`) can be referred to"
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
