//! The types of tool arguments, for markup that does not tell them.

use std::cell::Cell;
use std::collections::HashMap;

use serde_json::Value;

/// Nesting of references and alternatives that is followed; deeper ones allow any type.
const DEPTH: usize = 8;

/// Schemas that are looked at to answer one question; references may make many of few.
const VISITS: usize = 4096;

/// Follows references and alternatives, so far and no further.
struct Walk<'v> {
    /// Has the definitions.
    root: &'v Value,
    left: Cell<usize>,
}

impl<'v> Walk<'v> {
    fn new(root: &'v Value) -> Walk<'v> {
        Walk { root, left: Cell::new(VISITS) }
    }

    /// The members of a schema, if it may still be looked at.
    fn enter(&self, schema: &'v Value, depth: usize) -> Option<&'v serde_json::Map<String, Value>> {
        self.left.set(self.left.get().checked_sub(1)?);
        schema.as_object().filter(|_| depth > 0)
    }

    /// The schema that a reference names.
    fn referred(&self, path: &str) -> Option<&'v Value> {
        path.strip_prefix('#').and_then(|path| self.root.pointer(path))
    }
}

/// The tools of a request: their names and the types of their arguments.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas {
    tools: HashMap<String, Tool>,
}

/// What is known of the arguments of a tool.
#[derive(Debug, Clone)]
struct Tool {
    types: HashMap<String, Types>,
    schema: Value,
}

/// A part of a value, which a schema may describe.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'k> {
    /// The member of an object with this key.
    Member(&'k str),
    /// Any item of an array.
    Item,
}

/// The schema of a value of which nothing is known.
static ANY: Value = Value::Bool(true);

impl Part<'_> {
    /// The schema of this part of what `schema` describes; `root` has its definitions.
    pub(crate) fn of<'v>(self, schema: &'v Value, root: &'v Value) -> &'v Value {
        self.search(schema, &Walk::new(root), DEPTH).unwrap_or(&ANY)
    }

    fn search<'v>(self, schema: &'v Value, walk: &Walk<'v>, depth: usize) -> Option<&'v Value> {
        let fields = walk.enter(schema, depth)?;
        if let Some(path) = fields.get("$ref").and_then(Value::as_str) {
            return self.search(walk.referred(path)?, walk, depth - 1);
        }
        let own = match self {
            Part::Member(key) => fields
                .get("properties")
                .and_then(|known| known.get(key))
                .or_else(|| fields.get("additionalProperties")),
            Part::Item => fields.get("items"),
        };
        let alternatives = || {
            let lists = ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| fields.get(*key)?.as_array());
            lists.flatten().find_map(|schema| self.search(schema, walk, depth - 1))
        };
        own.or_else(alternatives)
    }
}

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// The types that a property's schema allows; `root` has the definitions that it refers to.
    pub fn of_schema(schema: &Value, root: &Value) -> Types {
        Types::in_schema(schema, &Walk::new(root), DEPTH)
    }

    /// Whether only strings are allowed.
    pub fn is_string(self) -> bool {
        self == Types::STRING
    }

    /// Whether the type with this name is allowed.
    pub fn allows_named(self, name: &str) -> bool {
        self.allows(Types::named(name))
    }

    const NONE: Types = Types(0);
    pub(crate) const STRING: Types = Types(1);
    const NUMBER: Types = Types(2);
    const BOOLEAN: Types = Types(4);
    const NULL: Types = Types(8);
    pub(crate) const OBJECT: Types = Types(16);
    pub(crate) const ARRAY: Types = Types(32);
    pub(crate) const ANY: Types = Types(63);
    /// Any type except strings.
    pub(crate) const JSON: Types = Types(62);

    pub(crate) fn allows(self, types: Types) -> bool {
        self.0 & types.0 == types.0
    }

    fn or(self, types: Types) -> Types {
        Types(self.0 | types.0)
    }

    /// The type of a value.
    pub(crate) fn of(value: &Value) -> Types {
        match value {
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(_) => Types::NUMBER,
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }

    fn named(name: &str) -> Types {
        match name {
            "string" => Types::STRING,
            "integer" | "number" => Types::NUMBER,
            "boolean" => Types::BOOLEAN,
            "null" => Types::NULL,
            "object" => Types::OBJECT,
            "array" => Types::ARRAY,
            _ => Types::ANY,
        }
    }

    /// The types that a schema allows.
    fn in_schema<'v>(schema: &'v Value, walk: &Walk<'v>, depth: usize) -> Types {
        let Some(fields) = walk.enter(schema, depth) else { return Types::ANY };
        let union = |schemas: &'v Vec<Value>| {
            let types = schemas.iter().map(|schema| Types::in_schema(schema, walk, depth - 1));
            types.fold(Types::NONE, Types::or)
        };
        let list = |key: &str| fields.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        if let Some(path) = fields.get("$ref").and_then(Value::as_str) {
            let found = walk.referred(path);
            return found.map_or(Types::ANY, |schema| Types::in_schema(schema, walk, depth - 1));
        }
        match fields.get("type") {
            Some(Value::String(name)) => return Types::named(name),
            Some(Value::Array(names)) => {
                let types = names.iter().map(|name| name.as_str().map_or(Types::ANY, Types::named));
                return types.fold(Types::NONE, Types::or);
            }
            _ => {}
        }
        if let Some(value) = fields.get("const") {
            return Types::of(value);
        }
        if let Some(values) = list("enum") {
            return values.iter().map(Types::of).fold(Types::NONE, Types::or);
        }
        if let Some(schemas) = list("anyOf").or_else(|| list("oneOf")) {
            return union(schemas);
        }
        if let Some(schemas) = list("allOf") {
            let types = schemas.iter().map(|schema| Types::in_schema(schema, walk, depth - 1));
            return types.fold(Types::ANY, |a, b| Types(a.0 & b.0));
        }
        Types::ANY
    }
}

impl ToolSchemas {
    /// The tools with the JSON schemas of their arguments.
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, &'a Value)>) -> ToolSchemas {
        let tool = |schema: &Value| {
            let properties = schema.get("properties").and_then(Value::as_object);
            let types =
                |(name, property): (&String, &Value)| (name.clone(), Types::of_schema(property, schema));
            let types = properties.into_iter().flatten().map(types).collect();
            Tool { types, schema: schema.clone() }
        };
        ToolSchemas {
            tools: tools.into_iter().map(|(name, schema)| (name.to_string(), tool(schema))).collect(),
        }
    }

    /// Whether there is a tool of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// Whether the name of a tool begins with this text.
    pub(crate) fn begins(&self, text: &str) -> bool {
        self.tools.keys().any(|name| name.starts_with(text))
    }

    /// The types of an argument: any, if it is unknown.
    pub(crate) fn types(&self, tool: &str, argument: &str) -> Types {
        self.tools.get(tool).and_then(|tool| tool.types.get(argument)).copied().unwrap_or(Types::ANY)
    }

    /// The schema of a tool's arguments: of anything, if it is unknown.
    pub(crate) fn schema(&self, tool: &str) -> &Value {
        self.tools.get(tool).map_or(&ANY, |tool| &tool.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_of_arguments() {
        let schema = json!({
            "properties": {
                "a": {"type": "string"}, "b": {"type": ["integer", "null"]}, "c": {"$ref": "#/$defs/c"},
                "d": {"anyOf": [{"type": "string"}, {"const": 1}]}, "e": {"enum": ["x", "y"]}, "f": {},
                "g": {"$ref": "#/$defs/g"}, "h": {"allOf": [{"type": ["string", "null"]}, {"type": "string"}]},
                "i": true,
            },
            "$defs": {"c": {"type": "array"}, "g": {"$ref": "#/$defs/g"}},
        });
        let tools = ToolSchemas::new([("f", &schema)]);
        for (argument, types) in [
            ("a", Types::STRING),
            ("b", Types::NUMBER.or(Types::NULL)),
            ("c", Types::ARRAY),
            ("d", Types::STRING.or(Types::NUMBER)),
            ("e", Types::STRING),
            ("f", Types::ANY),
            ("g", Types::ANY),
            ("h", Types::STRING),
            ("i", Types::ANY),
            ("unknown", Types::ANY),
        ] {
            assert_eq!(tools.types("f", argument), types, "{argument}");
        }
        assert_eq!(tools.types("unknown", "a"), Types::ANY);
    }

    #[test]
    fn references_that_multiply_are_not_followed_without_end() {
        let many = vec![json!({"$ref": "#"}); 1000];
        let schema = json!({"anyOf": many, "properties": {"a": {"$ref": "#"}}});
        let start = std::time::Instant::now();
        let tools = ToolSchemas::new([("f", &schema)]);
        assert_eq!(tools.types("f", "a"), Types::ANY);
        assert_eq!(Part::Item.of(&schema, &schema), &ANY);
        assert!(start.elapsed() < std::time::Duration::from_secs(5));
    }
}
