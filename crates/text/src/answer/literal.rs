//! Arguments as Python or Gemma write them, converted to JSON while text is still arriving.

use super::json::push_escaped;
use crate::markup::LiteralStyle;

/// Nesting of lists and maps.
const DEPTH: usize = 128;
/// Limit in bytes of a number, keyword or bare key.
const LONGEST_WORD: usize = 256;
/// Limit in bytes of the whitespace between a string and the punctuation after it.
const LONGEST_SPACE: usize = 16;
/// A value alone, as Python writes it.
const PYTHON: LiteralStyle = LiteralStyle { open: "", assign: "=", close: "", quote: "" };

/// How far the text could be read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Progress {
    /// More text is needed.
    More,
    /// The arguments are complete.
    Done,
    /// The text is not allowed here.
    Broken,
}

/// Reads `key=value, ..` up to the closing bracket and writes a JSON object.
#[derive(Debug)]
pub(super) struct Literals {
    style: LiteralStyle,
    stack: Vec<Frame>,
    expect: Expect,
    word: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Frame {
    Arguments,
    Map,
    List,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Expect {
    /// A key, or the end if `or_end`.
    Key {
        or_end: bool,
    },
    /// What separates a key from its value.
    Assign,
    /// A value, or the end of a list if `or_end`.
    Value {
        or_end: bool,
    },
    /// A comma or the end.
    Comma,
    /// The rest of a string that this quote ends.
    String(Quote, Role),
    /// The rest of a number, a keyword or a bare key.
    Word(Role),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Role {
    Key,
    Value,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Quote {
    Byte(u8),
    /// The quote of the style, without escapes.
    Style,
}

impl Literals {
    /// The text starts after the bracket that opens the arguments.
    pub(super) fn arguments(style: LiteralStyle, out: &mut String) -> Literals {
        out.push('{');
        let expect = Expect::Key { or_end: true };
        Literals { style, stack: vec![Frame::Arguments], expect, word: String::new() }
    }

    /// Whether a text can be the start of arguments, after the bracket that opens them;
    /// none if more text is needed.
    pub(super) fn begins(style: LiteralStyle, text: &str) -> Option<bool> {
        let body = text.trim_ascii_start();
        if body.starts_with(style.close) {
            return Some(true);
        }
        let key = body.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let after = key.trim_ascii_start();
        match body.len() - key.len() {
            0 if body.is_empty() => None,
            0 => Some(false),
            _ if after.is_empty() => (body.len() > LONGEST_WORD).then_some(false),
            _ => Some(after.starts_with(style.assign)),
        }
    }

    /// The JSON of one value, or none if it is none.
    pub(super) fn convert(text: &str) -> Option<String> {
        let expect = Expect::Value { or_end: false };
        let mut value = Literals { style: PYTHON, stack: vec![], expect, word: String::new() };
        let mut out = String::new();
        let ended = format!("{text},"); // ends a number, too
        let (used, progress) = value.read(&ended, &mut out);
        (progress == Progress::Done && used == text.len()).then_some(out)
    }

    /// Closes what is open.
    pub(super) fn close(&mut self, out: &mut String) {
        match self.expect {
            Expect::String(_, Role::Value) => out.push('"'),
            Expect::String(_, Role::Key) => out.push_str("\": null"),
            Expect::Word(Role::Value) => self.end_word(Role::Value, out),
            Expect::Word(Role::Key) => {
                self.end_word(Role::Key, out);
                out.push_str(": null");
            }
            Expect::Assign => out.push_str(": null"),
            Expect::Value { or_end: false } => out.push_str("null"),
            _ => {}
        }
        while let Some(frame) = self.stack.pop() {
            out.push(if frame == Frame::List { ']' } else { '}' });
        }
        self.expect = Expect::End;
    }

    /// Reads as far as possible; returns the number of bytes that were read.
    pub(super) fn read(&mut self, text: &str, out: &mut String) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let rest = &text[at..];
            match self.step(rest, out) {
                Step::Used(0) if self.expect == Expect::End => return (at, Progress::Done),
                Step::Used(bytes) => at += bytes,
                Step::More => return (at, Progress::More),
                Step::Broken => return (at, Progress::Broken),
            }
            if self.expect == Expect::End {
                return (at, Progress::Done);
            }
        }
    }

    fn step(&mut self, rest: &str, out: &mut String) -> Step {
        match self.expect {
            Expect::String(quote, role) => return self.string(rest, quote, role, out),
            Expect::Word(role) => return self.in_word(rest, role, out),
            _ => {}
        }
        let body = rest.trim_ascii_start();
        let space = rest.len() - body.len();
        let Some(&byte) = body.as_bytes().first() else {
            return if space > 0 { Step::Used(space) } else { Step::More };
        };
        let used = |bytes| Step::Used(space + bytes);
        let quote = self.style.quote;
        let in_arguments = self.stack.last() == Some(&Frame::Arguments);
        let closes = match self.stack.last() {
            Some(Frame::Arguments) => body.starts_with(self.style.close),
            Some(Frame::Map) => byte == b'}',
            Some(Frame::List) => byte == b']' || byte == b')',
            None => false,
        };
        let may_close =
            matches!(self.expect, Expect::Key { .. } | Expect::Value { or_end: true } | Expect::Comma);
        if closes && may_close {
            out.push(if self.stack.pop() == Some(Frame::List) { ']' } else { '}' });
            self.end_value();
            return used(1);
        }
        match (self.expect, byte) {
            (Expect::Key { or_end }, _) => {
                let before = out.len();
                let begun = self.begin_text(body, Role::Key, out);
                if !or_end && begun.is_ok() {
                    out.insert_str(before, ", ");
                }
                begun.map_or_else(|step| step, used)
            }
            (Expect::Assign, _) => {
                let assign = if in_arguments { self.style.assign } else { ":" };
                if !body.starts_with(assign) {
                    return Step::Broken;
                }
                out.push_str(": ");
                self.expect = Expect::Value { or_end: false };
                used(assign.len())
            }
            (Expect::Value { .. }, b'[' | b'(' | b'{') if quote.is_empty() || !body.starts_with(quote) => {
                if self.stack.len() >= DEPTH {
                    return Step::Broken;
                }
                let list = byte != b'{';
                out.push(if list { '[' } else { '{' });
                self.stack.push(if list { Frame::List } else { Frame::Map });
                self.expect =
                    if list { Expect::Value { or_end: true } } else { Expect::Key { or_end: true } };
                used(1)
            }
            (Expect::Value { .. }, _) => {
                self.begin_text(body, Role::Value, out).map_or_else(|step| step, used)
            }
            (Expect::Comma, b',') => {
                self.expect = match self.stack.last() {
                    Some(Frame::List) => {
                        out.push_str(", ");
                        Expect::Value { or_end: false }
                    }
                    _ => Expect::Key { or_end: false },
                };
                used(1)
            }
            _ => Step::Broken,
        }
    }

    /// The start of a string, a number, a keyword or a bare key; returns its length.
    fn begin_text(&mut self, body: &str, role: Role, out: &mut String) -> Result<usize, Step> {
        let quote = self.style.quote;
        if !quote.is_empty() && body.starts_with(quote) {
            out.push('"');
            self.expect = Expect::String(Quote::Style, role);
            return Ok(quote.len());
        }
        if !quote.is_empty() && quote.starts_with(body) {
            return Err(Step::More);
        }
        match body.as_bytes().first() {
            Some(&byte @ (b'"' | b'\'')) => {
                out.push('"');
                self.expect = Expect::String(Quote::Byte(byte), role);
                Ok(1)
            }
            Some(&byte) if is_word(byte) => {
                self.expect = Expect::Word(role);
                Ok(0)
            }
            _ => Err(Step::Broken),
        }
    }

    fn in_word(&mut self, rest: &str, role: Role, out: &mut String) -> Step {
        let length = rest.bytes().take_while(|&byte| is_word(byte)).count();
        self.word.push_str(&rest[..length]);
        if self.word.len() > LONGEST_WORD {
            return Step::Broken;
        }
        if length == rest.len() {
            return if length > 0 { Step::Used(length) } else { Step::More };
        }
        self.end_word(role, out);
        Step::Used(length)
    }

    fn end_word(&mut self, role: Role, out: &mut String) {
        let word = std::mem::take(&mut self.word);
        let keyword = match word.as_str() {
            "true" | "True" => Some("true"),
            "false" | "False" => Some("false"),
            "null" | "None" => Some("null"),
            number if serde_json::from_str::<serde_json::Number>(number).is_ok() => Some(number),
            _ => None,
        };
        match keyword.filter(|_| role == Role::Value) {
            Some(keyword) => out.push_str(keyword),
            None => {
                out.push('"');
                push_escaped(out, &word);
                out.push('"');
            }
        }
        self.end_text(role);
    }

    fn string(&mut self, rest: &str, quote: Quote, role: Role, out: &mut String) -> Step {
        let stop = match quote {
            Quote::Style => {
                let mark = self.style.quote;
                let (clear, found) = super::find(rest, &[mark]);
                push_escaped(out, &rest[..clear]);
                if found.is_none() {
                    return if clear > 0 { Step::Used(clear) } else { Step::More };
                }
                out.push('"');
                self.end_text(role);
                return Step::Used(clear + mark.len());
            }
            Quote::Byte(byte) => byte,
        };
        let clear = rest.bytes().position(|byte| byte == stop || byte == b'\\').unwrap_or(rest.len());
        push_escaped(out, &rest[..clear]);
        let end = &rest[clear..];
        if clear > 0 || end.is_empty() {
            return if clear > 0 { Step::Used(clear) } else { Step::More };
        }
        if end.starts_with('\\') {
            return escape(end, out).map_or(Step::More, Step::Used);
        }
        // models and templates do not escape an apostrophe: a quote ends a string only before punctuation
        let spaces = end.bytes().skip(1).take(LONGEST_SPACE).take_while(u8::is_ascii_whitespace).count();
        match end[1 + spaces..].chars().next() {
            None => Step::More,
            Some(',' | ')' | ']' | '}' | ':' | '=') => {
                out.push('"');
                self.end_text(role);
                Step::Used(1)
            }
            Some(_) => {
                push_escaped(out, &end[..1]);
                Step::Used(1)
            }
        }
    }

    fn end_text(&mut self, role: Role) {
        match role {
            Role::Key => self.expect = Expect::Assign,
            Role::Value => self.end_value(),
        }
    }

    fn end_value(&mut self) {
        self.expect = if self.stack.is_empty() { Expect::End } else { Expect::Comma };
    }
}

enum Step {
    Used(usize),
    More,
    Broken,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte)
}

/// Writes what an escape stands for and returns its length; none if more text is needed.
fn escape(text: &str, out: &mut String) -> Option<usize> {
    let code = text[1..].chars().next()?;
    let hex = |from: usize, digits: usize| {
        let digits = text.get(from..from + digits)?;
        Some(u32::from_str_radix(digits, 16).ok())
    };
    let simple = match code {
        'n' => "\n",
        't' => "\t",
        'r' => "\r",
        'b' => "\u{8}",
        'f' => "\u{c}",
        '\n' => "",
        'x' | 'u' | 'U' => {
            let digits = match code {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            if text.len() < 2 + digits {
                return None;
            }
            let unit = text.is_char_boundary(2 + digits).then(|| hex(2, digits)).flatten().flatten();
            let Some(unit) = unit else {
                push_escaped(out, &text[..2]);
                return Some(2);
            };
            // the second half of a surrogate pair, as in JSON
            if (0xd800..0xdc00).contains(&unit) && digits == 4 {
                let next = text.get(6..text.len().min(8)).unwrap_or("?");
                if text.len() < 12 && "\\u".starts_with(next) {
                    return None;
                }
                let low = text.get(6..8).filter(|mark| *mark == "\\u").and_then(|_| hex(8, 4)).flatten();
                if let Some(low) = low.filter(|low| (0xdc00..0xe000).contains(low)) {
                    let code = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                    push_escaped(out, char::from_u32(code).unwrap_or('\u{fffd}').encode_utf8(&mut [0; 4]));
                    return Some(12);
                }
            }
            push_escaped(out, char::from_u32(unit).unwrap_or('\u{fffd}').encode_utf8(&mut [0; 4]));
            return Some(2 + digits);
        }
        '\'' | '"' | '\\' | '/' => {
            push_escaped(out, &text[1..2]);
            return Some(2);
        }
        // Python keeps an unknown escape as it is
        other => {
            push_escaped(out, &text[..1 + other.len_utf8()]);
            return Some(1 + other.len_utf8());
        }
    };
    push_escaped(out, simple);
    Some(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_python_become_json() {
        for (text, json) in [
            ("12", "12"),
            (" -1.5e3 ", "-1.5e3"),
            ("True", "true"),
            ("None", "null"),
            ("'it\\'s \"x\"\\n\\u00fc'", r#""it's \"x\"\nü""#),
            ("'it's'", r#""it's""#),
            ("\"a\\\"b\"", r#""a\"b""#),
            ("{'a': [1, None, 'x'], \"b\": (1, 2), }", r#"{"a": [1, null, "x"], "b": [1, 2]}"#),
            ("[]", "[]"),
            ("{}", "{}"),
            ("'\\ud83d\\ude42 \\q \\x41'", r#""🙂 \\q A""#),
            ("celsius", r#""celsius""#),
        ] {
            assert_eq!(Literals::convert(text.trim_end()).as_deref(), Some(json), "{text}");
        }
        for bad in ["", "'a", "[1", "1 2", "{1}", "f(1)", "a b", "[1 2]"] {
            assert_eq!(Literals::convert(bad), None, "{bad}");
        }
        assert_eq!(Literals::convert(&"[".repeat(1000)), None);
    }
}
