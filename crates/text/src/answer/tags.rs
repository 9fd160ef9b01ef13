//! Arguments as elements, converted to a JSON object while text is still arriving.

use std::sync::Arc;

use super::elements::Elements;
use super::json::push_escaped;
use super::literal::{Literals, Progress};
use super::loose::{Found, loosely};
use crate::markup::{TagStyle, ValueKind};
use crate::tool_schemas::{ToolSchemas, Types};

/// Limit in bytes of a key and the text around it.
const LONGEST_KEY: usize = 512;

/// Reads the elements of one call.
#[derive(Debug)]
pub(super) struct Tags {
    style: TagStyle,
    /// What ends the call.
    ends: Vec<&'static str>,
    tool: String,
    schemas: Arc<ToolSchemas>,
    state: State,
    has_members: bool,
    /// The key of the last value.
    key: String,
    /// What ends it.
    end: String,
    /// What begins an element of the same name inside it; empty if values have no elements.
    again: String,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before an element or the end.
    Between,
    /// In a value; only strings are written before they are complete.
    Value {
        types: Types,
        /// At the start of the value.
        first: bool,
        /// Bytes of the value in which its end was searched.
        searched: usize,
        /// Elements of the same name that are open in them.
        depth: usize,
    },
}

impl Tags {
    /// The text starts after the name of the tool.
    pub(super) fn new(
        style: TagStyle,
        ends: Vec<&'static str>,
        tool: &str,
        schemas: &Arc<ToolSchemas>,
        out: &mut String,
    ) -> Tags {
        out.push('{');
        Tags {
            style,
            ends,
            tool: tool.to_string(),
            schemas: Arc::clone(schemas),
            state: State::Between,
            has_members: false,
            key: String::new(),
            end: String::new(),
            again: String::new(),
        }
    }

    /// Whether a text can follow the name of a tool; none if more text is needed.
    pub(super) fn begins(style: &TagStyle, ends: &[&'static str], text: &str) -> Option<bool> {
        let body = text.trim_ascii_start();
        let mut markers = ends.iter().chain([&style.before_key]);
        if markers.clone().any(|marker| body.starts_with(marker)) {
            return Some(true);
        }
        (!markers.any(|marker| marker.starts_with(body))).then_some(false)
    }

    /// Reads as far as possible; returns the number of bytes that were read.
    pub(super) fn read(&mut self, text: &str, out: &mut String) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let (used, progress) = match self.state {
                State::Between => self.between(&text[at..], out),
                State::Value { types, first, searched, depth } => {
                    let value = &text[at..];
                    match self.find_end(value, types, (searched, depth)) {
                        (length, None) => {
                            (self.whole_value(&value[..length], types, first, out) + self.end.len(), None)
                        }
                        (clear, Some(_)) if types == Types::STRING => {
                            (self.part_of_string(value, clear, first, out), Some(Progress::More))
                        }
                        (searched, Some(depth)) => {
                            self.state = State::Value { types, first, searched, depth };
                            (0, Some(Progress::More))
                        }
                    }
                }
            };
            at += used;
            match progress {
                Some(progress) => return (at, progress),
                None => continue,
            }
        }
    }

    /// The length of a value; or the bytes of it that cannot be part of its end, and the
    /// elements that are open in them.
    fn find_end(
        &self,
        value: &str,
        types: Types,
        (mut searched, mut depth): (usize, usize),
    ) -> (usize, Option<usize>) {
        let nests = types != Types::STRING && !self.again.is_empty();
        let markers = [self.end.as_str(), self.again.as_str()];
        let markers = if nests { &markers[..] } else { &markers[..1] };
        loop {
            let (clear, found) = super::find(&value[searched..], markers);
            searched += clear;
            match found {
                None => return (searched, Some(depth)),
                Some(0) if depth == 0 => return (searched, None),
                Some(0) => depth -= 1,
                Some(_) => depth += 1,
            }
            searched += found.map_or(0, |at| markers[at].len());
        }
    }

    /// Closes what is open.
    pub(super) fn close(&mut self, out: &mut String) {
        if let State::Value { types, first, .. } = self.state {
            out.push_str(match types {
                Types::STRING if first => "\"\"",
                Types::STRING => "\"",
                _ => "null",
            });
        }
        self.state = State::Between;
        out.push('}');
    }

    /// What is left of a call that is truncated here: its last value as it stands.
    pub(super) fn cut_off(&self, text: &str, out: &mut String) {
        match self.state {
            State::Value { types: Types::STRING, first, .. } => {
                out.push_str(if first { "\"" } else { "" });
                push_escaped(out, self.without_line_feed(text, first));
            }
            // elements are no JSON before they are complete
            State::Value { .. } if !self.again.is_empty() && text.contains(self.style.before_key) => {}
            State::Value { .. } => out.push_str(text.trim_ascii()),
            State::Between => {}
        }
    }

    fn between(&mut self, text: &str, out: &mut String) -> (usize, Option<Progress>) {
        let body = text.trim_ascii_start();
        let space = text.len() - body.len();
        match Tags::begins(&self.style, &self.ends, body) {
            None => return (space, Some(Progress::More)),
            Some(false) => return (space, Some(Progress::Broken)),
            Some(true) => {}
        }
        let ended = self.ends.iter().any(|end| body.starts_with(end));
        let Some(element) = body.strip_prefix(self.style.before_key).filter(|_| !ended) else {
            out.push('}');
            return (space, Some(Progress::Done));
        };
        // the end may begin like an element
        if self.ends.iter().any(|end| end.starts_with(body)) {
            return (space, Some(Progress::More));
        }
        if element.starts_with('/') {
            return (space, Some(Progress::Broken));
        }
        for (at, _) in element.char_indices().take_while(|(at, _)| *at < LONGEST_KEY) {
            for (marker, kind) in self.style.after_key {
                match loosely(&element[at..], marker.trim_ascii()) {
                    Found::Not => {}
                    Found::Maybe => return (space, Some(Progress::More)),
                    Found::Length(length) => {
                        self.begin_value(element[..at].trim_ascii(), (*marker, *kind), out);
                        return (text.len() - element.len() + at + length, None);
                    }
                }
            }
        }
        let progress = if element.len() < LONGEST_KEY { Progress::More } else { Progress::Broken };
        (space, Some(progress))
    }

    fn begin_value(&mut self, key: &str, after_key: (&'static str, ValueKind), out: &mut String) {
        out.push_str(if self.has_members { ", \"" } else { "\"" });
        push_escaped(out, key);
        out.push_str("\": ");
        self.has_members = true;
        let kind = after_key.1;
        let types = match kind {
            ValueKind::Schema | ValueKind::Cdata | ValueKind::Elements => self.schemas.types(&self.tool, key),
            ValueKind::String => Types::STRING,
            ValueKind::Json => Types::JSON,
        };
        let end = self.style.end_of(key, after_key);
        self.end = if kind == ValueKind::Cdata { end } else { end.trim_ascii().to_owned() };
        self.again.clear();
        if kind == ValueKind::Elements {
            self.again = [self.style.before_key, key, after_key.0].concat();
        }
        self.key = key.to_owned();
        self.state = State::Value { types, first: true, searched: 0, depth: 0 };
    }

    /// Writes the rest of a value; returns its length.
    fn whole_value(&mut self, text: &str, types: Types, first: bool, out: &mut String) -> usize {
        let value = self.without_line_feed(text, first);
        let value = if self.has_lines() { value.strip_suffix('\n').unwrap_or(value) } else { value };
        match types {
            Types::STRING => {
                out.push_str(if first { "\"" } else { "" });
                push_escaped(out, value);
                out.push('"');
            }
            _ if self.again.is_empty() => out.push_str(&typed(value, types)),
            _ => Elements::new(&self.style, &self.schemas, &self.tool).argument(&self.key, value, out),
        }
        self.state = State::Between;
        text.len()
    }

    /// Writes what is known of a string of which `clear` bytes have arrived; returns
    /// how much of it is written.
    fn part_of_string(&mut self, text: &str, clear: usize, first: bool, out: &mut String) -> usize {
        // a line feed before the end is not part of the value
        let known = match text[..clear].strip_suffix('\n') {
            Some(rest) if self.has_lines() => rest.len(),
            _ => clear,
        };
        if known > 0 {
            out.push_str(if first { "\"" } else { "" });
            push_escaped(out, self.without_line_feed(&text[..known], first));
            self.state = State::Value { types: Types::STRING, first: false, searched: 0, depth: 0 };
        }
        known
    }

    /// Whether values are on separate lines.
    fn has_lines(&self) -> bool {
        self.style.after_key.iter().any(|(text, _)| text.ends_with('\n'))
    }

    /// A value without the line feed before it.
    fn without_line_feed<'t>(&self, text: &'t str, first: bool) -> &'t str {
        if first && self.has_lines() { text.strip_prefix('\n').unwrap_or(text) } else { text }
    }
}

/// The JSON of a value, in a type that its schema allows if there is one, else as a string.
pub(super) fn typed(text: &str, types: Types) -> String {
    let string = || serde_json::Value::from(text).to_string();
    let body = text.trim_ascii();
    let json = |text: String| {
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some((Types::of(&value), text))
    };
    match json(body.to_string()).or_else(|| Literals::convert(body).and_then(json)) {
        Some((found, text)) if types.allows(found) && found != Types::STRING => text,
        // quotes around a value that must not be a string
        Some((Types::STRING, text)) if !types.allows(Types::STRING) => {
            let inner: String = serde_json::from_str(&text).unwrap_or_default();
            match json(inner) {
                Some((found, inner)) if types.allows(found) => inner,
                _ => text,
            }
        }
        _ => string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_have_the_type_of_their_schema() {
        let schema = json!({"properties": {
            "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
            "u": {"type": ["string", "integer"]}, "n": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        }});
        let schemas = ToolSchemas::new([("f", &schema)]);
        for (argument, text, want) in [
            ("i", "12", "12"),
            ("i", " 12\n", "12"),
            ("i", "\"12\"", "12"),
            ("i", "twelve", "\"twelve\""),
            ("b", "True", "true"),
            ("o", "{'a': None}", r#"{"a": null}"#),
            ("o", "{\"a\": 1e2}", "{\"a\": 1e2}"),
            ("u", "12", "12"),
            ("u", "a b", "\"a b\""),
            ("u", "\"a\"", r#""\"a\"""#),
            ("n", "null", "null"),
            ("n", "12", "\"12\""),
            ("unknown", "[1]", "[1]"),
            ("unknown", " x", "\" x\""),
        ] {
            assert_eq!(typed(text, schemas.types("f", argument)), want, "{argument} {text}");
        }
    }
}
