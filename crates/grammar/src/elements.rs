//! Grammars for arguments whose objects and arrays are elements inside an element.
//!
//! Objects with known properties and arrays with known items are written as elements, other values as JSON;
//! the parser accepts both.

use serde_json::Value;
use tern_text::{ITEM, TagStyle, Types};

use crate::arguments::{Property, Writer, is_only, properties, resolved, with_definitions};
use crate::schema;

/// Counts of items that are enforced; arrays of more are JSON.
const MOST_ITEMS: u64 = 256;

impl Writer<'_> {
    /// An element of a property, and the rules for it.
    pub(crate) fn element(
        &self,
        style: &TagStyle,
        rule: &str,
        property: &Property<'_>,
        root: &Value,
    ) -> (String, String) {
        let after_key = style.after_key.first().copied().unwrap_or(("", tern_text::ValueKind::Elements));
        let open = self.markup(&[style.before_key, property.key, after_key.0].concat());
        let close = style.end_of(property.key, after_key);
        if property.types.allows_named("string") {
            let (text, rules) = self.text(&close, &format!("{rule}_text"), property);
            return (format!("{open} {text}"), rules);
        }
        let close = self.markup(&close);
        let inside =
            self.members(style, rule, property, root).or_else(|| self.items(style, rule, property, root));
        let (inside, rules) = inside.unwrap_or_else(|| {
            let json = schema::with_options(with_definitions(property.schema, root));
            (format!("%json {json}"), String::new())
        });
        (format!("{open} {inside} {close}"), rules)
    }

    /// The members of an object with known properties, in their order.
    fn members(
        &self,
        style: &TagStyle,
        rule: &str,
        property: &Property<'_>,
        root: &Value,
    ) -> Option<(String, String)> {
        let members = properties(property.schema, root);
        if !is_only(property.types, "object") || members.is_empty() || !self.take_elements(members.len()) {
            return None;
        }
        let (mut inside, mut rules) = (Vec::new(), String::new());
        for (at, member) in members.iter().enumerate() {
            let name = format!("{rule}_{at}");
            let (element, more) = self.element(style, &name, member, root);
            rules += &format!("{name}: {element}\n{more}");
            inside.push(if member.required { name } else { format!("{name}?") });
        }
        Some((inside.join(" "), rules))
    }

    /// The items of an array whose items have one schema.
    fn items(
        &self,
        style: &TagStyle,
        rule: &str,
        property: &Property<'_>,
        root: &Value,
    ) -> Option<(String, String)> {
        let schema = property.schema.get("items").filter(|_| property.schema.get("prefixItems").is_none())?;
        let count = |key: &str| property.schema.get(key).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        let counted = least.max(most.unwrap_or(0)) <= MOST_ITEMS;
        if !is_only(property.types, "array") || !counted || !self.take_elements(1) {
            return None;
        }
        let types = Types::of_schema(schema, root);
        let item = Property { key: ITEM, schema: resolved(schema, root), types, required: true };
        let name = format!("{rule}_{ITEM}");
        let (element, more) = self.element(style, &name, &item, root);
        let inside = match most {
            Some(0) => "\"\"".to_owned(),
            Some(most) => format!("{name}{{{least},{most}}}"),
            None if least == 0 => format!("{name}*"),
            None => format!("{name}{{{least}}} {name}*"),
        };
        Some((inside, format!("{name}: {element}\n{more}")))
    }

    /// Whether this many more elements may have separate rules: schemas may refer to themselves.
    fn take_elements(&self, count: usize) -> bool {
        let left = self.elements_left.get().checked_sub(count);
        self.elements_left.set(left.unwrap_or(0));
        left.is_some()
    }
}
