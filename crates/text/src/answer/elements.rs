//! Elements inside the element of an argument: the members of an object, or the items of an array.

use serde_json::Value;

use super::find;
use super::json::push_escaped;
use super::tags::typed;
use crate::markup::{ITEM, TagStyle};
use crate::tool_schemas::{Part, ToolSchemas, Types};

/// Nesting of elements; deeper ones are text.
const DEPTH: usize = 64;

/// Converts complete values to JSON of the types that the schema of a tool gives them.
pub(super) struct Elements<'a> {
    /// Before a name.
    open: &'a str,
    /// Before the same name, after the value.
    close: &'a str,
    /// After a name.
    end: &'a str,
    /// The schema of the tool's arguments.
    schema: &'a Value,
}

impl<'a> Elements<'a> {
    pub(super) fn new(style: &'a TagStyle, schemas: &'a ToolSchemas, tool: &str) -> Elements<'a> {
        let end = style.after_key.first().map_or("", |(text, _)| *text);
        Elements { open: style.before_key, close: style.after_value, end, schema: schemas.schema(tool) }
    }

    /// The value of an argument.
    pub(super) fn argument(&self, key: &str, text: &str, out: &mut String) {
        self.value(text, Part::Member(key).of(self.schema, self.schema), DEPTH, out);
    }

    fn value(&self, text: &str, schema: &Value, depth: usize, out: &mut String) {
        let types = Types::of_schema(schema, self.schema);
        let elements =
            self.split(text).filter(|elements| !elements.is_empty() && !types.is_string() && depth > 0);
        let (list, map) = (types.allows(Types::ARRAY), types.allows(Types::OBJECT));
        match elements {
            // without a schema their names decide
            Some(items) if list && (!map || items.iter().all(|(key, _)| *key == ITEM)) => {
                let schema = Part::Item.of(schema, self.schema);
                out.push('[');
                for (at, (_, item)) in items.into_iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    self.value(item, schema, depth - 1, out);
                }
                out.push(']');
            }
            Some(members) => {
                out.push('{');
                for (at, (key, member)) in members.into_iter().enumerate() {
                    out.push_str(if at > 0 { ", \"" } else { "\"" });
                    push_escaped(out, key);
                    out.push_str("\": ");
                    self.value(member, Part::Member(key).of(schema, self.schema), depth - 1, out);
                }
                out.push('}');
            }
            None if text.trim_ascii().is_empty() && !types.allows(Types::STRING) && (list || map) => {
                out.push_str(if list { "[]" } else { "{}" });
            }
            None => out.push_str(&typed(text, types)),
        }
    }

    /// The names and the values of elements; none if the text is anything else.
    fn split<'t>(&self, text: &'t str) -> Option<Vec<(&'t str, &'t str)>> {
        let mut elements = Vec::new();
        let mut rest = text.trim_ascii();
        while !rest.is_empty() {
            let (key, after) = rest.strip_prefix(self.open)?.split_once(self.end)?;
            if key.starts_with('/') || key.is_empty() {
                return None;
            }
            let markers = [[self.close, key, self.end].concat(), [self.open, key, self.end].concat()];
            let markers = [markers[0].as_str(), markers[1].as_str()];
            let (mut at, mut depth) = (0, 0);
            loop {
                let (clear, found) = find(&after[at..], &markers);
                at += clear;
                match found? {
                    0 if depth == 0 => break,
                    0 => depth -= 1,
                    _ => depth += 1,
                }
                at += markers[found?].len();
            }
            elements.push((key, &after[..at]));
            rest = after[at + markers[0].len()..].trim_ascii_start();
        }
        Some(elements)
    }
}
