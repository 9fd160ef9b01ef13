//! The part of a call before its arguments: it is held back until it is certain that this is a call.

use super::json::{Event, Members};
use super::literal::Literals;
use super::loose::{Found, loosely};
use super::tags::Tags;
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
    /// Markers that must follow before the call.
    begins: Vec<&'static str>,
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Debug)]
enum Step {
    /// Before a list, an object or a name.
    Open { list: bool },
    /// In a name before JSON, which starts at this byte.
    Name(usize),
    /// In a name before elements or literals, which starts at this byte.
    Tool(usize),
    /// After that name.
    AfterTool,
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
    /// A call whose arguments, elements or literals, start at `from`.
    Body { name: String, from: usize },
    /// A complete call up to `to`; the object around it has ended or not.
    Whole { name: String, arguments: String, to: usize, ended: bool },
}

impl CallHeader {
    /// A possible call that starts with this marker, or without one.
    pub(super) fn after(marker: Option<&'static str>, marked: bool, style: &CallStyle) -> CallHeader {
        let begins = match marker {
            Some(marker) => style.begins().skip_while(|begin| *begin != marker).skip(1).collect(),
            None => vec![],
        };
        let (at, step) = (marker.map_or(0, str::len), Step::Open { list: false });
        CallHeader { marked, at, step, begins, name: None, arguments: None }
    }

    /// A call whose name is known, with its arguments after this many bytes.
    pub(super) fn named(name: String, at: usize) -> CallHeader {
        let step = Step::BeforeArguments;
        CallHeader { marked: true, at, step, begins: vec![], name: Some(name), arguments: None }
    }

    /// Continues parsing the held text.
    pub(super) fn read(&mut self, text: &str, style: &CallStyle) -> Verdict {
        if let Some(verdict) = self.markers(text) {
            return verdict;
        }
        loop {
            if let Step::Object(..) = self.step {
                match self.object(text, style) {
                    Some(verdict) => return verdict,
                    None => continue,
                }
            }
            let Some(rest) = text.get(self.at..) else { return Verdict::Wait };
            if let Step::Tool(_) | Step::AfterTool = self.step {
                match self.tool(text, style) {
                    Some(verdict) => return verdict,
                    None => continue,
                }
            }
            if let (Step::Name(from), CallForm::Named { after_id, between }) = (&self.step, style.form) {
                let between = between.trim_ascii();
                if rest.starts_with(between) {
                    match name_in(&text[*from..self.at], after_id) {
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
                (Step::Open { .. }, byte)
                    if matches!(style.form, CallForm::Tagged(_) | CallForm::Literal(_)) && is_name(byte) =>
                {
                    self.step = Step::Tool(self.at);
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

    /// Continues with the markers before the call; `None` if none is left.
    fn markers(&mut self, text: &str) -> Option<Verdict> {
        while let Some(next) = self.begins.first() {
            let rest = text.get(self.at..).unwrap_or_default();
            let body = rest.trim_ascii_start();
            if body.starts_with(next) {
                self.at += rest.len() - body.len() + next.len();
                self.begins.remove(0);
            } else if next.starts_with(body) {
                return Some(Verdict::Wait);
            } else if body.starts_with('{') {
                self.begins.clear(); // some models write JSON instead
            } else {
                return Some(Verdict::NotACall(self.at));
            }
        }
        None
    }

    /// Continues parsing the name before elements or literals; `None` if another step follows.
    fn tool(&mut self, text: &str, style: &CallStyle) -> Option<Verdict> {
        if let Step::Tool(from) = self.step {
            let rest = text.get(self.at..).unwrap_or_default();
            self.at += rest.bytes().take_while(|&byte| is_name(byte)).count();
            if self.at - from > LONGEST_NAME {
                return Some(Verdict::NotACall(self.at));
            }
            if self.at == text.len() {
                return Some(Verdict::Wait);
            }
            self.name = Some(text[from..self.at].to_string());
            self.step = Step::AfterTool;
        }
        let rest = text.get(self.at..).unwrap_or_default();
        let body = rest.trim_ascii_start();
        let space = rest.len() - body.len();
        if space > LONGEST_NAME {
            return Some(Verdict::NotACall(self.at));
        }
        let opening = match style.form {
            CallForm::Tagged(tags) => loosely(body, tags.after_name.trim_ascii()),
            CallForm::Literal(literal) => loosely(body, literal.open),
            _ => Found::Not,
        };
        let length = match opening {
            Found::Not => return Some(Verdict::NotACall(self.at)),
            Found::Maybe => return Some(Verdict::Wait),
            Found::Length(length) => length,
        };
        let after = &body[length..];
        let begins = match style.form {
            _ if after.len() - after.trim_ascii_start().len() > LONGEST_NAME => Some(false),
            CallForm::Tagged(tags) => Tags::begins(&tags, &style.ends().collect::<Vec<_>>(), after),
            CallForm::Literal(literal) => Literals::begins(literal, after),
            _ => Some(false),
        };
        Some(match begins {
            None => Verdict::Wait,
            Some(false) => Verdict::NotACall(self.at),
            Some(true) => {
                let name = self.name.take().unwrap_or_default();
                Verdict::Body { name, from: self.at + space + length }
            }
        })
    }

    /// Continues parsing the object; `None` if another step follows.
    fn object(&mut self, text: &str, style: &CallStyle) -> Option<Verdict> {
        let Step::Object(members, member, from) = &mut self.step else { return None };
        let (name_key, arguments_key) = match style.form {
            CallForm::Object { name_key, arguments_key } => (name_key, arguments_key),
            _ => ("name", "arguments"),
        };
        let keyed = style.form == CallForm::Keyed && self.name.is_none();
        match members.next(text) {
            None => return Some(Verdict::Wait),
            Some(Event::Bad(at)) => return Some(Verdict::NotACall(at)),
            Some(Event::Value(key, at)) if keyed && !key.is_empty() => {
                self.name = Some(key);
                (*from, *member) = (at, Member::Arguments);
                match text.as_bytes().get(at) {
                    Some(b'{') => {
                        self.at = at + 1;
                        self.step = Step::Arguments { from: at, object: true };
                    }
                    Some(b'n') => {}
                    _ => return Some(Verdict::NotACall(at)),
                }
            }
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

/// Whether a byte can be part of a function's name.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./:".contains(&byte)
}

/// The name in `functions.weather:0`, `weather[CALL_ID]a1b2` and `weather <|constrain|>json`, or after an id.
pub(super) fn name_in(text: &str, after_id: &str) -> Option<String> {
    let text = match text.split_once(after_id) {
        Some((_, name)) if !after_id.is_empty() => name.trim_ascii(),
        _ => text.trim_ascii(),
    };
    let text = text.strip_prefix("functions.").unwrap_or(text);
    let name: String =
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || "_-./".contains(*c)).collect();
    (!name.is_empty()).then_some(name)
}
