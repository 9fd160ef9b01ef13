//! Origins of text: which bytes of each string come from the user's request.
//!
//! Strings keep their exact contents, so templates behave as usual. Strings with a user's text are
//! shared strings that are registered here by address, which their clones share; all others are the
//! template's own. Operators, filters and methods track the origins of their results; results without
//! tracking count as the user's.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hashbrown::HashMap;
use minijinja::Value;
use minijinja::value::Serde;
use serde_json::Value as Json;

use super::traced::{Piece, Spans, Traced, append, whole};

/// The size of an entry in addition to its string.
const ENTRY: usize = 128;

/// Most strings are short-lived: after this many bytes of new ones, unused entries are removed.
const YOUNG: usize = 64 << 10;

/// Older entries are checked when their size has doubled and exceeds this.
const OLD: usize = 1 << 20;

/// What has been written to an output: the whole text, a captured block, or the output of a macro.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) len: usize,
    pub(super) spans: Spans,
}

/// Keeps the address of an entry from being reused.
#[derive(Debug)]
enum Holder {
    Weak(Weak<str>),
    /// A safe string: the engine cannot create one from a shared string.
    Safe(#[expect(dead_code, reason = "held, not read")] Value),
}

#[derive(Debug)]
struct Entry {
    holder: Holder,
    len: usize,
    spans: Spans,
}

impl Entry {
    fn size(&self) -> usize {
        ENTRY + self.len + self.spans.len() * size_of::<Range<usize>>()
    }

    fn is_held(&self) -> bool {
        match &self.holder {
            Holder::Weak(weak) => weak.strong_count() > 0,
            Holder::Safe(_) => true,
        }
    }
}

/// The strings of one rendering that contain a user's text, and its outputs.
#[derive(Debug, Default)]
pub(super) struct Origins(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<usize, Entry>,
    /// Addresses of the latest entries, and their size.
    young: Vec<usize>,
    young_size: usize,
    /// Size of all other entries, and the size at which they are checked.
    old_size: usize,
    old_limit: usize,
    /// A user's single characters, which loops over strings produce repeatedly.
    chars: HashMap<char, Value>,
    outputs: Vec<Written>,
}

impl Table {
    fn note(&mut self, value: &Value, holder: Holder, spans: Spans) {
        let Some(text) = value.as_str() else { return };
        let entry = Entry { holder, len: text.len(), spans };
        self.young_size += entry.size();
        self.young.push(text.as_ptr() as usize);
        self.entries.insert(text.as_ptr() as usize, entry);
        if self.young_size > YOUNG {
            self.sweep();
        }
    }

    /// Removes the entries of dropped strings.
    fn sweep(&mut self) {
        self.young_size = 0;
        for address in self.young.drain(..) {
            match self.entries.get(&address) {
                Some(entry) if entry.is_held() => self.old_size += entry.size(),
                _ => {
                    self.entries.remove(&address);
                }
            }
        }
        if self.old_size > self.old_limit.max(OLD) {
            self.entries.retain(|_, entry| entry.is_held());
            self.old_size = self.entries.values().map(Entry::size).sum();
            self.old_limit = 2 * self.old_size;
        }
    }

    fn value(&mut self, text: &str, spans: Spans) -> Value {
        if spans.is_empty() {
            return Value::from(text);
        }
        let shared: Arc<str> = text.into();
        let holder = Holder::Weak(Arc::downgrade(&shared));
        let value = Value::from(shared);
        self.note(&value, holder, spans);
        value
    }
}

impl Origins {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The spans of a string; none for anything else.
    pub(super) fn spans(&self, value: &Value) -> Spans {
        let Some(text) = value.as_str() else { return Spans::new() };
        let table = self.table();
        table.entries.get(&(text.as_ptr() as usize)).map_or_else(Spans::new, |entry| entry.spans.clone())
    }

    /// Whether a string contains a user's text.
    pub(super) fn is_users(&self, value: &Value) -> bool {
        value.as_str().is_some_and(|text| self.table().entries.contains_key(&(text.as_ptr() as usize)))
    }

    /// A string value with its spans.
    pub(super) fn piece<'v>(&self, value: &'v Value) -> Option<Piece<'v>> {
        Some(Piece { text: value.as_str()?, spans: self.spans(value) })
    }

    /// The value of a text.
    pub(super) fn value(&self, traced: Traced) -> Value {
        self.table().value(&traced.text, traced.spans)
    }

    /// The value of a text that is marked safe.
    pub(super) fn safe_value(&self, traced: Traced) -> Value {
        let value = Value::from_safe_string(traced.text);
        if !traced.spans.is_empty() {
            self.table().note(&value, Holder::Safe(value.clone()), traced.spans);
        }
        value
    }

    /// The value of a part of a text.
    pub(super) fn part(&self, piece: &Piece<'_>) -> Value {
        self.table().value(piece.text, piece.spans.clone())
    }

    /// The same string with other spans.
    pub(super) fn respan(&self, value: Value, spans: Spans) -> Value {
        match value.as_str() {
            Some(_) if spans.is_empty() => value,
            Some(text) if value.is_safe() => self.safe_value(Traced { text: text.to_owned(), spans }),
            Some(text) => self.table().value(text, spans),
            None => value,
        }
    }

    /// A single character.
    pub(super) fn character(&self, c: char, user: bool) -> Value {
        if !user {
            return Value::from(c);
        }
        let mut table = self.table();
        if let Some(value) = table.chars.get(&c) {
            return value.clone();
        }
        let value = table.value(c.encode_utf8(&mut [0; 4]), whole(c.len_utf8()));
        table.chars.insert(c, value.clone());
        value
    }

    /// The characters of a string.
    pub(super) fn characters(&self, piece: &Piece<'_>) -> Vec<Value> {
        let stretch =
            |(text, user): (&str, bool)| text.chars().map(|c| self.character(c, user)).collect::<Vec<_>>();
        piece.stretches().into_iter().flat_map(stretch).collect()
    }

    /// A value of the request: all its strings and keys are the user's.
    pub(super) fn given(&self, json: &Json) -> Value {
        match json {
            Json::String(text) => self.given_text(text),
            Json::Array(items) => items.iter().map(|item| self.given(item)).collect(),
            Json::Object(map) => {
                Value::from_pairs(map.iter().map(|(key, item)| (self.given_text(key), self.given(item))))
            }
            other => Value::from(Serde(other)),
        }
    }

    pub(super) fn given_text(&self, text: &str) -> Value {
        self.table().value(text, whole(text.len()))
    }

    /// Starts a nested output.
    pub(super) fn begin(&self) {
        self.table().outputs.push(Written::default());
    }

    /// Ends the latest output.
    pub(super) fn end(&self) -> Written {
        self.table().outputs.pop().unwrap_or_default()
    }

    /// Records what is written to the latest output. Returns the length of the whole
    /// text if that is the output.
    pub(super) fn wrote(&self, piece: &Piece<'_>) -> Option<usize> {
        let mut table = self.table();
        let outermost = table.outputs.len() == 1;
        let output = table.outputs.last_mut()?;
        append(&mut output.spans, output.len, &piece.spans);
        output.len += piece.text.len();
        outermost.then_some(output.len)
    }

    /// Ends the latest output, whose result is `value`: the text written to it, or the result of a function.
    pub(super) fn captured(&self, value: Value) -> Value {
        let written = self.end();
        let Some(len) = value.as_str().map(str::len) else { return value };
        match written.spans.is_empty() {
            true => value,
            false if written.len == len => self.respan(value, written.spans),
            // not expected: the result is not the text that was written
            false => self.respan(value, whole(len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_found_by_address_and_removed_when_dropped() {
        let origins = Origins::default();
        let value = origins.given_text("hello");
        assert!(origins.is_users(&value.clone()));
        assert!(!origins.is_users(&Value::from("hello")));
        for i in 0..100_000 {
            origins.given_text(&format!("a text that is dropped {i}"));
        }
        assert!(origins.table().entries.len() < 10_000);
        assert!(origins.is_users(&value));
    }
}
