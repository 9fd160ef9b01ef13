//! Where texts come from: which bytes of each string were written by the sender of the conversation.
//!
//! Strings keep their exact contents, so a template reads and compares them as ever. Those that hold a user's text are
//! shared strings known here by their address, which their clones have too; all others are the template's own.
//! Operators, filters and methods say what their results took from whom, and what does not say it counts as a user's.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hashbrown::HashMap;
use minijinja::Value;
use minijinja::value::Serde;
use serde_json::Value as Json;

/// Bytes of a text that a user wrote: in order, apart, none empty.
pub(super) type Spans = Vec<Range<usize>>;

/// The spans of a text that is wholly a user's.
pub(super) fn whole(len: usize) -> Spans {
    Some(0..len).filter(|span| !span.is_empty()).into_iter().collect()
}

/// What an entry costs beside its string.
const ENTRY: usize = 128;

/// Most strings are gone soon: after this many bytes of new ones, their entries are looked through.
const YOUNG: usize = 64 << 10;

/// What has outlived that is looked through when it has doubled, and taken more than this.
const OLD: usize = 1 << 20;

/// A string and what of it a user wrote.
#[derive(Clone, Debug)]
pub(super) struct Piece<'t> {
    pub(super) text: &'t str,
    pub(super) spans: Spans,
}

impl<'t> Piece<'t> {
    /// A part of this text, which must be a slice of it.
    pub(super) fn part(&self, part: &'t str) -> Piece<'t> {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        let end = start + part.len();
        let first = self.spans.partition_point(|span| span.end <= start);
        let inside = self.spans.iter().skip(first).take_while(|span| span.start < end);
        let cut = |span: &Range<usize>| span.start.max(start) - start..span.end.min(end) - start;
        Piece { text: part, spans: inside.map(cut).collect() }
    }

    /// The text in stretches that are wholly a user's (true) or wholly the template's.
    pub(super) fn stretches(&self) -> Vec<(&'t str, bool)> {
        let mut stretches = Vec::with_capacity(2 * self.spans.len() + 1);
        let mut at = 0;
        for span in &self.spans {
            stretches.push((at..span.start, false));
            stretches.push((span.clone(), true));
            at = span.end;
        }
        stretches.push((at..self.text.len(), false));
        let text = |(range, user): (Range<usize>, bool)| Some((self.text.get(range)?, user));
        stretches.into_iter().filter_map(text).filter(|(text, _)| !text.is_empty()).collect()
    }
}

/// A text being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Traced {
    pub(super) text: String,
    pub(super) spans: Spans,
}

impl Traced {
    pub(super) fn with_capacity(bytes: usize) -> Traced {
        Traced { text: String::with_capacity(bytes), spans: Spans::new() }
    }

    /// Adds the template's own words.
    pub(super) fn own(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds a text with its spans.
    pub(super) fn push(&mut self, piece: &Piece<'_>) {
        let at = self.text.len();
        self.text.push_str(piece.text);
        append(&mut self.spans, at, &piece.spans);
    }

    /// Adds what `write` writes, as a user's or as the template's own.
    pub(super) fn with(&mut self, user: bool, write: impl FnOnce(&mut String)) {
        let at = self.text.len();
        write(&mut self.text);
        let end = self.text.len();
        if user && at < end {
            append(&mut self.spans, 0, std::slice::from_ref(&(at..end)));
        }
    }

    pub(super) fn as_piece(&self) -> Piece<'_> {
        Piece { text: &self.text, spans: self.spans.clone() }
    }
}

/// Adds spans of what follows at `at`, joining those that touch.
fn append(spans: &mut Spans, at: usize, more: &[Range<usize>]) {
    for span in more {
        match spans.last_mut() {
            Some(last) if last.end == span.start + at => last.end = span.end + at,
            _ => spans.push(span.start + at..span.end + at),
        }
    }
}

/// What has been written to an output: the whole text, a captured block, or a macro's.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) len: usize,
    pub(super) spans: Spans,
}

/// Keeps the address of an entry from being used again.
#[derive(Debug)]
enum Holder {
    Weak(Weak<str>),
    /// A string marked safe: the engine has no way to make one from a shared string.
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

/// The strings of one rendering that hold a user's text, and its outputs.
#[derive(Debug, Default)]
pub(super) struct Origins(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<usize, Entry>,
    /// Addresses of the latest entries, and their size.
    young: Vec<usize>,
    young_size: usize,
    /// Size of all others, and at which they are looked through.
    old_size: usize,
    old_limit: usize,
    /// A user's single characters, which loops over strings give again and again.
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

    /// Forgets strings that nobody has any more.
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

    /// Whether a string holds a user's text.
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

    /// What a request gave: every string and key of it is a user's.
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

    /// Begins an output of its own.
    pub(super) fn begin(&self) {
        self.table().outputs.push(Written::default());
    }

    /// Ends the latest output.
    pub(super) fn end(&self) -> Written {
        self.table().outputs.pop().unwrap_or_default()
    }

    /// Notes what is written to the latest output. Gives the length of the whole text, if that is where it went.
    pub(super) fn wrote(&self, piece: &Piece<'_>) -> Option<usize> {
        let mut table = self.table();
        let outermost = table.outputs.len() == 1;
        let output = table.outputs.last_mut()?;
        append(&mut output.spans, output.len, &piece.spans);
        output.len += piece.text.len();
        outermost.then_some(output.len)
    }

    /// What the latest output became: `value`, the text written to it, or what a function without output returned.
    pub(super) fn captured(&self, value: Value) -> Value {
        let written = self.end();
        let Some(len) = value.as_str().map(str::len) else { return value };
        match written.spans.is_empty() {
            true => value,
            false if written.len == len => self.respan(value, written.spans),
            // never seen: what was written is not what came out
            false => self.respan(value, whole(len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(piece: &Piece<'_>) -> Vec<(String, bool)> {
        piece.stretches().into_iter().map(|(text, user)| (text.to_owned(), user)).collect()
    }

    #[test]
    fn parts_keep_who_wrote_them() {
        let mut traced = Traced::default();
        traced.own("<a>");
        traced.push(&Piece { text: "user", spans: whole(4) });
        traced.with(true, |out| out.push('!'));
        traced.own("</a>");
        assert_eq!(traced.spans, std::slice::from_ref(&(3..8)));
        let piece = traced.as_piece();
        assert_eq!(spans(&piece), [("<a>".into(), false), ("user!".into(), true), ("</a>".into(), false)]);
        let part = piece.part(&piece.text[1..5]);
        assert_eq!(spans(&part), [("a>".into(), false), ("us".into(), true)]);
        assert!(piece.part(&piece.text[8..]).spans.is_empty());
    }

    #[test]
    fn strings_are_known_by_address_and_forgotten_when_gone() {
        let origins = Origins::default();
        let value = origins.given_text("hello");
        assert!(origins.is_users(&value.clone()));
        assert!(!origins.is_users(&Value::from("hello")));
        for i in 0..100_000 {
            origins.given_text(&format!("a text that nobody keeps {i}"));
        }
        assert!(origins.table().entries.len() < 10_000);
        assert!(origins.is_users(&value));
    }
}
