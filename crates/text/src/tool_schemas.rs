//! The types of tool arguments, for markup that does not tell them.

use std::collections::HashMap;

use serde_json::Value;

/// Nesting of references and alternatives that is followed; deeper ones allow any type.
const DEPTH: usize = 8;

/// The tools of a request: their names and the types of their arguments.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas {
    tools: HashMap<String, HashMap<String, Types>>,
}

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// The types that a property's schema allows; `root` has the definitions that it refers to.
    pub fn of_schema(schema: &Value, root: &Value) -> Types {
        Types::in_schema(schema, root, DEPTH)
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
    const OBJECT: Types = Types(16);
    const ARRAY: Types = Types(32);
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

    /// The types that a schema allows; `root` has its definitions.
    fn in_schema(schema: &Value, root: &Value, depth: usize) -> Types {
        let Some(fields) = schema.as_object().filter(|_| depth > 0) else { return Types::ANY };
        let union = |schemas: &Vec<Value>| {
            let types = schemas.iter().map(|schema| Types::in_schema(schema, root, depth - 1));
            types.fold(Types::NONE, Types::or)
        };
        let list = |key: &str| fields.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        if let Some(path) = fields.get("$ref").and_then(Value::as_str) {
            let found = path.strip_prefix('#').and_then(|path| root.pointer(path));
            return found.map_or(Types::ANY, |schema| Types::in_schema(schema, root, depth - 1));
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
            let types = schemas.iter().map(|schema| Types::in_schema(schema, root, depth - 1));
            return types.fold(Types::ANY, |a, b| Types(a.0 & b.0));
        }
        Types::ANY
    }
}

impl ToolSchemas {
    /// The tools with the JSON schemas of their arguments.
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, &'a Value)>) -> ToolSchemas {
        let types = |schema: &Value| {
            let properties = schema.get("properties").and_then(Value::as_object);
            let types =
                |(name, property): (&String, &Value)| (name.clone(), Types::of_schema(property, schema));
            properties.into_iter().flatten().map(types).collect()
        };
        ToolSchemas {
            tools: tools.into_iter().map(|(name, schema)| (name.to_string(), types(schema))).collect(),
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
        self.tools.get(tool).and_then(|types| types.get(argument)).copied().unwrap_or(Types::ANY)
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
}
