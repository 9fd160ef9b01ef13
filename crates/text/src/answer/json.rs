//! Incremental JSON: the end of a value and the members of an object, while text is still arriving.

/// Tracks the brackets and quotes of one value; other characters are not checked.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    depth: usize,
    string: bool,
    escaped: bool,
}

impl Nesting {
    /// Adds the next byte; returns whether the value is complete.
    pub(super) fn step(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.string => self.escaped = true,
            b'"' => self.string = !self.string,
            _ if self.string => return false,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => return false,
        }
        matches!(byte, b'"' | b'}' | b']') && self.depth == 0 && !self.string && !self.escaped
    }

    pub(super) fn in_string(&self) -> bool {
        self.string
    }
}

/// The next event of parsing an object; positions are in bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// The value of this key starts here.
    Value(String, usize),
    /// The value ended before here.
    ValueEnd(usize),
    /// The object ended before here.
    End(usize),
    /// Not an object: the byte at this position is not allowed.
    Bad(usize),
}

/// Parses an object's members one by one from text that is still growing.
#[derive(Debug)]
pub(super) struct Members {
    at: usize,
    expect: Expect,
    nesting: Nesting,
    key_from: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Expect {
    Open,
    FirstKey,
    Key,
    KeyEnd,
    Colon,
    Value,
    NestedEnd,
    ScalarEnd,
    Comma,
}

impl Members {
    /// The object starts at this byte.
    pub(super) fn at(at: usize) -> Members {
        Members { at, expect: Expect::Open, nesting: Nesting::default(), key_from: at }
    }

    /// The text starts after a member of the object.
    pub(super) fn after_value() -> Members {
        Members { expect: Expect::Comma, ..Members::at(0) }
    }

    /// The next event; `None` if more text is needed.
    pub(super) fn next(&mut self, text: &str) -> Option<Event> {
        while let Some(&byte) = text.as_bytes().get(self.at) {
            let here = self.at;
            match (self.expect, byte) {
                (Expect::KeyEnd, _) => {
                    if self.nesting.step(byte) {
                        self.expect = Expect::Colon;
                    }
                }
                (Expect::NestedEnd, _) => {
                    if self.nesting.step(byte) {
                        self.at += 1;
                        self.expect = Expect::Comma;
                        return Some(Event::ValueEnd(self.at));
                    }
                }
                (Expect::ScalarEnd, b'+' | b'-' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {}
                (Expect::ScalarEnd, _) => {
                    self.expect = Expect::Comma;
                    return Some(Event::ValueEnd(here));
                }
                (_, b' ' | b'\n' | b'\r' | b'\t') => {}
                (Expect::Open, b'{') => self.expect = Expect::FirstKey,
                (Expect::FirstKey | Expect::Key, b'"') => {
                    self.expect = Expect::KeyEnd;
                    self.key_from = here;
                    self.nesting = Nesting::default();
                    self.nesting.step(byte);
                }
                (Expect::Colon, b':') => self.expect = Expect::Value,
                (Expect::Value, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                    // the value's first byte is parsed by the next call
                    self.expect = if b"{[\"".contains(&byte) { Expect::NestedEnd } else { Expect::ScalarEnd };
                    self.nesting = Nesting::default();
                    let key = text.get(self.key_from..here).unwrap_or_default();
                    let key = key.trim_end_matches([' ', '\n', '\r', '\t', ':']);
                    return Some(Event::Value(serde_json::from_str(key).unwrap_or_default(), here));
                }
                (Expect::Comma, b',') => self.expect = Expect::Key,
                (Expect::FirstKey | Expect::Comma, b'}') => {
                    self.at += 1;
                    return Some(Event::End(self.at));
                }
                _ => return Some(Event::Bad(here)),
            }
            self.at += 1;
        }
        None
    }
}

/// Writes a text as the inside of a JSON string.
pub(super) fn push_escaped(out: &mut String, text: &str) {
    let quoted = serde_json::Value::from(text).to_string();
    out.push_str(&quoted[1..quoted.len() - 1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_growing_object() {
        let text = r#" {"a\"}": {"x": ["}]"]}, "b" : -1.5e+3 , "c":"\\","d":null} rest"#;
        let mut members = Members::at(0);
        let mut values = Vec::new();
        let mut end = None;
        let mut from = (String::new(), 0);
        for so_far in 0..=text.len() {
            while let Some(event) = members.next(&text[..so_far]) {
                match event {
                    Event::Value(key, at) => from = (key, at),
                    Event::ValueEnd(at) => values.push((from.0.clone(), &text[from.1..at])),
                    Event::End(at) => end = Some(at),
                    Event::Bad(at) => panic!("bad at {at}"),
                }
                if end.is_some() {
                    break;
                }
            }
            if end.is_some() {
                break;
            }
        }
        let want = [(r#"a"}"#, r#"{"x": ["}]"]}"#), ("b", "-1.5e+3"), ("c", r#""\\""#), ("d", "null")];
        assert_eq!(values, want.map(|(key, value)| (key.to_string(), value)));
        assert_eq!(&text[end.unwrap()..], " rest");
        for (bad, at) in
            [("[", 0), ("{a", 1), (r#"{"a" 1"#, 5), (r#"{"a": 1 2"#, 8), (r#"{"a": 1,}"#, 8), ("{\"a\":é", 5)]
        {
            let mut members = Members::at(0);
            let last = std::iter::from_fn(|| members.next(bad)).find(|event| matches!(event, Event::Bad(_)));
            assert_eq!(last, Some(Event::Bad(at)), "{bad}");
        }
    }
}
