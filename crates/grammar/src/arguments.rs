//! Grammars for the arguments of calls that are not JSON: elements, and lists of keys and values.
//!
//! Arguments are in the order of the schema's properties, and only those; required ones are always present.
//! Numbers, booleans, and objects and arrays in elements follow their schema. Strings are free text, one of
//! their `enum` or of their length; patterns and formats do not apply to them.

use std::cell::Cell;

use serde_json::{Map, Value, json};
use tern_text::{LiteralStyle, TagStyle, Tokenizer, Types, ValueKind};

use crate::lark::literal;
use crate::schema;

/// Lengths of strings that are enforced: longer ones are expensive as a regex.
const LONGEST_COUNTED: u64 = 256;

/// References that are followed to the schema of a property.
const REFERENCES: usize = 8;

/// Nesting of lists that is examined.
const LISTS: usize = 4;

/// Elements inside the arguments of all calls that have their own rule.
const ELEMENTS: usize = 256;

/// Any text.
const TEXT: &str = "(?s:.*)";

/// Writes Lark for a vocabulary.
pub(crate) struct Writer<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Elements inside elements that may still be written; further values are JSON.
    pub(crate) elements_left: Cell<usize>,
}

/// A property of a schema.
pub(crate) struct Property<'a> {
    pub(crate) key: &'a str,
    pub(crate) schema: &'a Value,
    pub(crate) types: Types,
    pub(crate) required: bool,
}

/// A part of a fixed text.
enum Piece<'t> {
    Text(&'t str),
    Control(u32),
}

impl<'a> Writer<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Writer<'a> {
        Writer { tokenizer, elements_left: Cell::new(ELEMENTS) }
    }

    /// A text in Lark, with its control tokens as token ids.
    pub(crate) fn markup(&self, text: &str) -> String {
        let lark = |piece: &Piece<'_>| match piece {
            Piece::Text(text) => Some(literal(text)),
            // an end token may follow every complete text
            Piece::Control(id) if self.tokenizer.eog().contains(id) => None,
            Piece::Control(id) => Some(format!("<[{id}]>")),
        };
        self.pieces(text).iter().filter_map(lark).collect::<Vec<_>>().join(" ")
    }

    fn pieces<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        let mut rest = text;
        for id in self.tokenizer.encode(text, false, true) {
            let spelling = self.tokenizer.token_text(id).filter(|_| self.tokenizer.is_control(id));
            let Some((before, after)) = spelling.and_then(|spelling| rest.split_once(spelling)) else {
                continue;
            };
            if !before.is_empty() {
                pieces.push(Piece::Text(before));
            }
            pieces.push(Piece::Control(id));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest));
        }
        pieces
    }

    /// The rules that all calls use.
    pub(crate) fn shared_rules(&self, form: &tern_text::ArgumentForm) -> String {
        let tern_text::ArgumentForm::Literal(style) = form else { return String::new() };
        if style.quote.is_empty() {
            return String::new();
        }
        let (string, rules) = self.quoted(style.quote, "quoted", TEXT);
        let quote = self.markup(style.quote);
        format!(
            "value: {quote} {string} | %json {scalar} | \"[\" (value (\",\" value)*)? \"]\" | \"{{\" (member (\",\" member)*)? \"}}\"\n\
             member: /[A-Za-z_][A-Za-z0-9_]*/ \":\" value\n{rules}",
            scalar = json!({"type": ["number", "boolean", "null"]}),
        )
    }

    /// Elements: what is between the name and the end of a call, and its rules.
    pub(crate) fn tags(&self, style: &TagStyle, rule: &str, schema: &Value) -> (String, String) {
        let mut inside = Vec::new();
        let mut rules = String::new();
        for (at, property) in properties(schema, schema).into_iter().enumerate() {
            let name = format!("{rule}_{at}");
            let mut options = Vec::new();
            for (n, (after_key, kind)) in style.after_key.iter().enumerate() {
                let before = self.markup(&format!("{}{}{after_key}", style.before_key, property.key));
                let free = match kind {
                    ValueKind::Schema => property.types.allows_named("string"),
                    ValueKind::String if property.types.allows_named("string") => true,
                    ValueKind::Json if !property.types.is_string() => false,
                    ValueKind::Elements => {
                        let (element, more) = self.element(style, &name, &property, schema);
                        options.push(element);
                        rules += &more;
                        continue;
                    }
                    _ => continue,
                };
                if free {
                    let (text, more) = self.text(style.after_value, &format!("{name}_text{n}"), &property);
                    options.push(format!("{before} {text}"));
                    rules += &more;
                    continue;
                }
                let Some(json) = json_of(&property, schema, after_key) else { continue };
                options.push(format!("{before} %json {json} {}", self.markup(style.after_value)));
            }
            rules += &format!("{name}: {}\n", options.join(" | "));
            inside.push(if property.required { name } else { format!("{name}?") });
        }
        (inside.join(" "), rules)
    }

    /// Keys and values: what is between the brackets of a call, and its rules.
    pub(crate) fn literals(&self, style: &LiteralStyle, rule: &str, schema: &Value) -> (String, String) {
        let properties = properties(schema, schema);
        let separator = if style.quote.is_empty() { "\", \"" } else { "\",\"" };
        let mut rules = String::new();
        let count = properties.len();
        for (at, property) in properties.iter().enumerate() {
            let key = self.markup(&format!("{}{}", property.key, style.assign));
            let (value, more) = self.literal_value(style, &format!("{rule}_{at}"), property, schema);
            let next =
                |kind: &str| if at + 1 == count { String::new() } else { format!("{rule}_{kind}{}", at + 1) };
            let skip = |kind: &str| match (property.required, at + 1 == count) {
                (true, _) => String::new(),
                (false, true) => " | \"\"".to_string(),
                (false, false) => format!(" | {}", next(kind)),
            };
            rules += &more;
            // the first argument has no separator before it
            rules += &format!("{rule}_first{at}: {key} {value} {}{}\n", next("more"), skip("first"));
            rules +=
                &format!("{rule}_more{at}: {separator} {key} {value} {}{}\n", next("more"), skip("more"));
        }
        (if count == 0 { String::new() } else { format!("{rule}_first0") }, rules)
    }

    fn literal_value(
        &self,
        style: &LiteralStyle,
        rule: &str,
        property: &Property<'_>,
        root: &Value,
    ) -> (String, String) {
        if style.quote.is_empty() {
            let json = schema::with_options(with_definitions(property.schema, root));
            return (format!("%json {json}"), String::new());
        }
        if property.types.is_string() {
            let quote = self.markup(style.quote);
            if let Some(choices) = choices(property) {
                let name = rule.to_uppercase();
                return (format!("{quote} {name} {quote}"), format!("{name}: {choices}\n"));
            }
            let (text, rules) = self.quoted(style.quote, &format!("{rule}_text"), &pattern(property));
            return (format!("{quote} {text}"), rules);
        }
        match is_json(property.schema, root, LISTS) {
            true => (format!("%json {}", with_definitions(property.schema, root)), String::new()),
            false => ("value".to_string(), String::new()),
        }
    }

    /// A string value and the text after it, and the rules for them.
    pub(crate) fn text(&self, after: &str, rule: &str, property: &Property<'_>) -> (String, String) {
        match choices(property).filter(|_| property.types.is_string()) {
            // one terminal: one choice may be a prefix of another
            Some(choices) => {
                let name = rule.to_uppercase();
                (format!("{name} {}", self.markup(after)), format!("{name}: {choices}\n"))
            }
            None => {
                let end = after.trim_ascii();
                let (text, rules) = self.quoted(end, rule, &pattern(property));
                let rest = after.rsplit_once(end).map_or("", |(_, rest)| rest);
                (format!("{text} {}", self.markup(rest)), rules)
            }
        }
    }

    /// Text up to an end, and the end; and the rules for it.
    fn quoted(&self, end: &str, rule: &str, pattern: &str) -> (String, String) {
        let pieces = self.pieces(end);
        let Some(at) = pieces.iter().position(|piece| matches!(piece, Piece::Control(_))) else {
            return (rule.to_string(), format!("{rule}[suffix={}]: /{pattern}/\n", literal(end)));
        };
        // a control token is not text: what is before it ends the text only together with it
        let before = match pieces.first() {
            Some(Piece::Text(text)) if at > 0 => regex_syntax::escape(text).replace('/', "\\/"),
            _ => String::new(),
        };
        let rest = end.split_at(before_control(&pieces)).1;
        let rest = self.markup(rest);
        match before.is_empty() {
            true => (format!("(/{}/)? {rest}", some(pattern)), String::new()),
            false => (format!("/{pattern}{before}/ {rest}"), String::new()),
        }
    }
}

/// Whether values of a schema are written as in JSON: numbers, booleans, null, and lists of them.
fn is_json(schema: &Value, root: &Value, lists: usize) -> bool {
    let schema = resolved(schema, root);
    let types = Types::of_schema(schema, root);
    let items = || schema.get("items").is_some_and(|items| lists > 0 && is_json(items, root, lists - 1));
    !types.allows_named("string")
        && !types.allows_named("object")
        && (!types.allows_named("array") || items())
}

/// The bytes of text before the first control token.
fn before_control(pieces: &[Piece<'_>]) -> usize {
    match pieces.first() {
        Some(Piece::Text(text)) => text.len(),
        _ => 0,
    }
}

/// A pattern that does not match the empty text, which is optional instead.
fn some(pattern: &str) -> String {
    match pattern {
        TEXT => "(?s:.+)".into(),
        pattern => pattern.replacen("{0,", "{1,", 1),
    }
}

/// The properties of a schema, in its order, and required ones that it does not describe.
pub(crate) fn properties<'a>(schema: &'a Value, root: &'a Value) -> Vec<Property<'a>> {
    static ANY: Value = Value::Bool(true);
    let object = resolved(schema, root);
    let required: Vec<&str> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let known = object.get("properties").and_then(Value::as_object);
    let mut out: Vec<Property<'_>> = Vec::new();
    for (key, property) in known.into_iter().flatten() {
        let types = Types::of_schema(property, root);
        let property = resolved(property, root);
        out.push(Property { key, schema: property, types, required: required.contains(&key.as_str()) });
    }
    for key in required {
        if known.is_none_or(|known| !known.contains_key(key)) {
            let types = Types::of_schema(&ANY, root);
            out.push(Property { key, schema: &ANY, types, required: true });
        }
    }
    out
}

/// The schema that a reference names.
pub(crate) fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut at = schema;
    for _ in 0..REFERENCES {
        let path = at.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
        match path.and_then(|path| root.pointer(path)) {
            Some(target) => at = target,
            None => break,
        }
    }
    at
}

/// The schema of a property, with the definitions that it may refer to.
pub(crate) fn with_definitions(property: &Value, root: &Value) -> Value {
    let mut fields = match property {
        Value::Object(fields) => fields.clone(),
        _ => Map::new(),
    };
    for key in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(key) {
            fields.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    fields.into()
}

/// The schema of a value after a key that may name its type; none if the type is not allowed.
fn json_of(property: &Property<'_>, root: &Value, after_key: &str) -> Option<Value> {
    let named =
        after_key.split_once("type=\"").and_then(|(_, rest)| rest.split_once('"')).map(|(name, _)| name);
    let plain = || schema::with_options(with_definitions(property.schema, root));
    match named {
        None => Some(plain()),
        Some(name) if !property.types.allows_named(name) => None,
        Some(name) => Some(if is_only(property.types, name) { plain() } else { json!({"type": name}) }),
    }
}

/// Whether no other type than the named one is allowed.
pub(crate) fn is_only(types: Types, name: &str) -> bool {
    ["number", "boolean", "object", "array", "null", "string"]
        .iter()
        .all(|other| (*other == name) == types.allows_named(other))
}

/// The strings that a property allows, if it lists them.
fn choices(property: &Property<'_>) -> Option<String> {
    let listed = match (property.schema.get("const"), property.schema.get("enum")) {
        (Some(value), _) => vec![value],
        (None, Some(values)) => values.as_array()?.iter().collect(),
        (None, None) => return None,
    };
    let texts: Option<Vec<String>> = listed.into_iter().map(|value| value.as_str().map(literal)).collect();
    texts.filter(|texts| !texts.is_empty()).map(|texts| texts.join(" | "))
}

/// The regex of a string.
fn pattern(property: &Property<'_>) -> String {
    let length = |key: &str| property.schema.get(key).and_then(Value::as_u64);
    match (length("minLength").unwrap_or(0), length("maxLength")) {
        (least, Some(most)) if least <= most && most <= LONGEST_COUNTED => {
            format!("(?s:.{{{least},{most}}})")
        }
        (least, None) if least > 0 && least <= LONGEST_COUNTED => format!("(?s:.{{{least},}})"),
        _ => TEXT.into(),
    }
}
