//! The part of a call before its arguments: it is held back until it is certain that this is a call.

use super::json::{Event, Members};
use crate::markup::{CallForm, CallStyle};

/// Limit in bytes of a function's name and the text around it outside of JSON.
const LONGEST_NAME: usize = 256;

/// The state of parsing a call before its arguments.
#[derive(Debug)]
pub(super) struct CallHeader {
    /// Whether a marker identifies this as a call.
    marked: bool,
    /// Position in the held text, in bytes.
    at: usize,
    step: Step,
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Debug)]
enum Step {
    /// Before a list, an object or a name.
    Open { list: bool },
    /// In a name outside of JSON, which starts at this byte.
    Name(usize),
    /// In an object: its current member, and the start of the member's value.
    Object(Members, Member, usize),
    /// Before the arguments.
    BeforeArguments,
    /// In the arguments, which start at this byte; inside an object or not.
    Arguments { from: usize, object: bool },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Member {
    Name,
    Arguments,
    Other,
}

/// What the held text is. Positions are in bytes.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Unknown: more text is needed.
    Wait,
    /// Not a call: the byte at this position is not allowed.
    NotACall(usize),
    /// A call whose arguments start at `from`, possibly as a member of an object.
    Begins { name: String, from: usize, object: bool },
    /// A complete call up to `to`; the object around it has ended or not.
    Whole { name: String, arguments: String, to: usize, ended: bool },
}

impl CallHeader {
    /// A possible call after this many bytes, the length of its marker.
    pub(super) fn after(marker: usize, marked: bool) -> CallHeader {
        CallHeader { marked, at: marker, step: Step::Open { list: false }, name: None, arguments: None }
    }

    /// Continues parsing the held text.
    pub(super) fn read(&mut self, text: &str, style: &CallStyle) -> Verdict {
        loop {
            if let Step::Object(..) = self.step {
                match self.object(text, style) {
                    Some(verdict) => return verdict,
                    None => continue,
                }
            }
            let Some(rest) = text.get(self.at..) else { return Verdict::Wait };
            if let (Step::Name(from), CallForm::Named { between }) = (&self.step, style.form) {
                let between = between.trim_ascii();
                if rest.starts_with(between) {
                    match name_in(&text[*from..self.at]) {
                        Some(name) => self.name = Some(name),
                        None => return Verdict::NotACall(self.at),
                    }
                    self.at += between.len();
                    self.step = Step::BeforeArguments;
                    continue;
                }
                match rest.chars().next() {
                    _ if between.starts_with(rest) => return Verdict::Wait,
                    Some(c) if c.is_ascii() && !"{}\"()".contains(c) && self.at - from < LONGEST_NAME => {
                        self.at += 1
                    }
                    _ => return Verdict::NotACall(self.at),
                }
                continue;
            }
            self.at += rest.len() - rest.trim_ascii_start().len();
            let Some(&byte) = text.as_bytes().get(self.at) else { return Verdict::Wait };
            match (&self.step, byte) {
                (Step::Open { .. }, b'{') => {
                    self.step = Step::Object(Members::at(self.at), Member::Other, self.at);
                }
                (Step::Open { list: false }, b'[') => {
                    self.at += 1;
                    self.step = Step::Open { list: true };
                }
                (Step::Open { list: false }, _) if matches!(style.form, CallForm::Named { .. }) => {
                    self.step = Step::Name(self.at);
                }
                (Step::BeforeArguments, b'{') => {
                    self.step = Step::Arguments { from: self.at, object: false };
                    self.at += 1;
                }
                (&Step::Arguments { from, object }, b'"' | b'}') => {
                    return Verdict::Begins { name: self.name.take().unwrap_or_default(), from, object };
                }
                _ => return Verdict::NotACall(self.at),
            }
        }
    }

    /// Continues parsing the object; `None` if another step follows.
    fn object(&mut self, text: &str, style: &CallStyle) -> Option<Verdict> {
        let Step::Object(members, member, from) = &mut self.step else { return None };
        let (name_key, arguments_key) = match style.form {
            CallForm::Object { name_key, arguments_key } => (name_key, arguments_key),
            CallForm::Named { .. } => ("name", "arguments"),
        };
        match members.next(text) {
            None => return Some(Verdict::Wait),
            Some(Event::Bad(at)) => return Some(Verdict::NotACall(at)),
            Some(Event::Value(key, at)) => {
                *from = at;
                *member = match key.as_str() {
                    key if key == name_key => Member::Name,
                    key if key == arguments_key || key == "arguments" || key == "parameters" => {
                        Member::Arguments
                    }
                    _ => Member::Other,
                };
                let byte = text.as_bytes().get(at);
                match (*member, byte) {
                    // JSON with other keys is content
                    (Member::Other, _) if !self.marked && key != "type" && key != "id" => {
                        return Some(Verdict::NotACall(at));
                    }
                    (Member::Name, Some(b'"')) | (Member::Other, _) => {}
                    (Member::Arguments, Some(b'{')) if self.name.is_some() => {
                        self.at = at + 1;
                        self.step = Step::Arguments { from: at, object: true };
                    }
                    (Member::Arguments, Some(b'{' | b'"' | b'n')) => {}
                    _ => return Some(Verdict::NotACall(at)),
                }
            }
            Some(Event::ValueEnd(at)) => {
                let value = &text[*from..at];
                let read = match member {
                    Member::Name => {
                        self.name = serde_json::from_str(value).ok().filter(|name: &String| !name.is_empty());
                        self.name.is_some()
                    }
                    Member::Arguments => {
                        self.arguments = arguments_of(value);
                        self.arguments.is_some()
                    }
                    Member::Other => true,
                };
                if !read {
                    return Some(Verdict::NotACall(at));
                }
                if let (Some(name), Some(arguments)) = (&self.name, &self.arguments) {
                    let (name, arguments) = (name.clone(), arguments.clone());
                    return Some(Verdict::Whole { name, arguments, to: at, ended: false });
                }
            }
            Some(Event::End(at)) => {
                return Some(match self.name.take() {
                    Some(name) if self.marked => {
                        Verdict::Whole { name, arguments: "{}".into(), to: at, ended: true }
                    }
                    _ => Verdict::NotACall(at),
                });
            }
        }
        None
    }

    /// The name and the arguments of a call that is truncated here.
    pub(super) fn cut_off(self, text: &str) -> Option<(String, &str)> {
        match self.step {
            Step::Arguments { from, .. } => Some((self.name?, &text[from..])),
            _ if self.marked => Some((self.name?, "")),
            _ => None,
        }
    }
}

/// The text of the arguments: an object, an object encoded as a string, or null.
fn arguments_of(value: &str) -> Option<String> {
    let text = match value.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(value).ok()?,
        Some(b'n') if value == "null" => "{}".into(),
        _ => value.to_string(),
    };
    let is_object = text.trim_ascii_start().starts_with('{')
        && serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    is_object.then_some(text)
}

/// The name in `functions.weather:0`, `weather[CALL_ID]a1b2` and `weather <|constrain|>json`.
fn name_in(text: &str) -> Option<String> {
    let text = text.trim_ascii();
    let text = text.strip_prefix("functions.").unwrap_or(text);
    let name: String =
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || "_-./".contains(*c)).collect();
    (!name.is_empty()).then_some(name)
}
