//! Incremental parsing of an answer into reasoning, content and tool calls.

mod call_header;
mod json;
mod output;
mod part;

use self::call_header::{CallHeader, Verdict};
use self::json::{Event, Members, Nesting};
use self::output::{Kind, Output};
use crate::markup::{CallStyle, Markup, ReasoningStyle};

pub use self::part::Part;

/// Parses an answer piece by piece. The result does not depend on how the answer is divided into pieces.
///
/// Only text that may still become markup is held back; if it does not, it is content.
///
/// ```
/// use tern_text::{AnswerParser, Markup, Part};
/// let markup = Markup::of("... </think> ... <tool_call>\n{\"name\": ...}\n</tool_call>");
/// let mut answer = AnswerParser::new(&markup, "<|im_start|>assistant\n<think>\n", true);
/// assert_eq!(answer.push("Easy.\n</th"), [Part::Reasoning("Easy.".into())]);
/// assert_eq!(answer.push("ink>\n\nHi <to"), [Part::Content("Hi".into())]);
/// assert_eq!(answer.push("ol_call>{\"name\": \"now\", \"argum"), []);
/// assert_eq!(
///     answer.push("ents\": {}}</tool_call>"),
///     [
///         Part::CallBegin { index: 0, name: "now".into() },
///         Part::CallArguments { index: 0, text: "{}".into() },
///     ]
/// );
/// assert_eq!(answer.finish(), []);
/// ```
#[derive(Debug)]
pub struct AnswerParser {
    reasoning: Option<ReasoningStyle>,
    calls: Option<CallStyle>,
    /// The markers to search for in content, and whether each starts a call.
    markers: Vec<(&'static str, bool)>,
    state: State,
    /// Text that is not processed yet: from `at` on.
    text: String,
    at: usize,
    out: Output,
}

#[derive(Debug)]
enum State {
    /// Only whitespace since the beginning, or since a marker.
    Start,
    Reasoning,
    Content,
    /// Possibly at the start of a call.
    CallHeader(Box<CallHeader>),
    /// In a call's arguments, which may be a member of an object.
    Arguments(Nesting, bool),
    /// In the object around the arguments, after them.
    Members(Members),
    /// After a call, before the marker that ends it or another call.
    AfterCall,
}

impl AnswerParser {
    /// An answer to a prompt that ends with `prompt_tail`: a prompt may end inside reasoning.
    ///
    /// Without `wants_tools` calls are not parsed, and their markup is content.
    pub fn new(markup: &Markup, prompt_tail: &str, wants_tools: bool) -> AnswerParser {
        let (reasoning, calls) = (markup.reasoning, markup.calls.filter(|_| wants_tools));
        let mut markers = Vec::new();
        if let Some(style) = calls {
            markers.push((style.begins(), true));
            markers.extend(style.around().map(|text| (text, false)));
        }
        markers.extend(reasoning.iter().flat_map(|style| style.dropped).map(|&text| (text, false)));
        markers.retain(|(text, _)| !text.is_empty());
        let ends_with = |text: &str| prompt_tail.trim_ascii_end().ends_with(text);
        let state = match reasoning {
            Some(style) if ends_with(style.begin) => State::Reasoning,
            _ => State::Start,
        };
        let after_marker = reasoning.is_some_and(|style| ends_with(style.begin) || ends_with(style.end));
        let out = Output::new(after_marker);
        AnswerParser { reasoning, calls, markers, state, text: String::new(), at: 0, out }
    }

    /// Adds the next piece of the answer and returns the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.text.push_str(text);
        while self.step() {}
        self.text.drain(..self.at);
        self.at = 0;
        std::mem::take(&mut self.out.parts)
    }

    /// Ends the answer and returns the parts held back.
    pub fn finish(&mut self) -> Vec<Part> {
        let rest = self.text.split_off(self.at);
        self.text.clear();
        self.at = 0;
        match std::mem::replace(&mut self.state, State::Content) {
            State::Start | State::Content => self.out.end(Kind::Content, &rest),
            State::Reasoning => self.out.end(Kind::Reasoning, &rest),
            State::CallHeader(header) => match header.cut_off(&rest) {
                Some((name, arguments)) => {
                    self.out.call(name);
                    self.out.arguments(arguments);
                }
                // a truncated call without a name, after other calls: not content
                None if self.out.has_calls() => {}
                None => self.out.end(Kind::Content, &rest),
            },
            State::Arguments(..) => self.out.arguments(&rest),
            State::Members(_) | State::AfterCall => {}
        }
        std::mem::take(&mut self.out.parts)
    }

    /// Makes one transition; returns false if more text is needed.
    fn step(&mut self) -> bool {
        let state = std::mem::replace(&mut self.state, State::Content);
        let (state, goes_on) = match state {
            State::Start => self.start(),
            State::Reasoning => self.reason(),
            State::Content => self.content(),
            State::CallHeader(header) => self.header(header),
            State::Arguments(nesting, object) => self.arguments(nesting, object),
            State::Members(members) => self.members(members),
            State::AfterCall => self.after_call(),
        };
        self.state = state;
        goes_on
    }

    fn start(&mut self) -> (State, bool) {
        let rest = &self.text[self.at..];
        let body = rest.trim_ascii_start();
        let space = rest.len() - body.len();
        self.out.say(Kind::Content, &rest[..space]);
        self.at += space;
        if body.is_empty() {
            return (State::Start, false);
        }
        if let Some(style) = self.reasoning {
            if body.starts_with(style.begin) {
                self.at += style.begin.len();
                self.out.marker();
                return (State::Reasoning, true);
            }
            if style.begin.starts_with(body) {
                return (State::Start, false);
            }
        }
        match self.calls {
            Some(style) if style.bare && body.starts_with(['{', '[']) => {
                (State::CallHeader(Box::new(CallHeader::after(0, false))), true)
            }
            _ => (State::Content, true),
        }
    }

    fn reason(&mut self) -> (State, bool) {
        let Some(style) = self.reasoning else { return (State::Content, true) };
        if self.out.after_marker {
            // a model may repeat the marker at the end of the prompt
            let body = self.text[self.at..].trim_ascii_start();
            self.at = self.text.len() - body.len();
            if body.starts_with(style.begin) {
                self.at += style.begin.len();
                return (State::Reasoning, true);
            }
            if style.begin.starts_with(body) {
                return (State::Reasoning, false);
            }
        }
        let rest = &self.text[self.at..];
        let (clear, found) = find(rest, &[(style.end, false)]);
        self.out.say(Kind::Reasoning, &rest[..clear]);
        self.at += clear;
        if found.is_none() {
            return (State::Reasoning, false);
        }
        self.at += style.end.len();
        self.out.marker();
        (State::Start, true)
    }

    fn content(&mut self) -> (State, bool) {
        let rest = &self.text[self.at..];
        let (clear, found) = find(rest, &self.markers);
        self.out.say(Kind::Content, &rest[..clear]);
        self.at += clear;
        match found {
            None => {
                if self.markers.is_empty() {
                    self.out.give_space(Kind::Content);
                }
                (State::Content, false)
            }
            Some((marker, true)) => {
                (State::CallHeader(Box::new(CallHeader::after(marker.len(), true))), true)
            }
            Some((marker, false)) => {
                self.at += marker.len();
                self.out.marker();
                (State::Start, true)
            }
        }
    }

    fn header(&mut self, mut header: Box<CallHeader>) -> (State, bool) {
        let Some(style) = &self.calls else { return (State::Content, true) };
        let rest = &self.text[self.at..];
        match header.read(rest, style) {
            Verdict::Wait => (State::CallHeader(header), false),
            Verdict::NotACall(at) => {
                self.out.say(Kind::Content, &rest[..at]);
                self.at += at;
                (State::Content, true)
            }
            Verdict::Begins { name, from, object } => {
                self.out.call(name);
                self.at += from;
                (State::Arguments(Nesting::default(), object), true)
            }
            Verdict::Whole { name, arguments, to, ended } => {
                self.out.call(name);
                self.out.arguments(&arguments);
                self.at += to;
                (if ended { State::AfterCall } else { State::Members(Members::after_value()) }, true)
            }
        }
    }

    fn arguments(&mut self, mut nesting: Nesting, object: bool) -> (State, bool) {
        let end = self.calls.map_or("", |style| style.ends());
        let rest = &self.text[self.at..];
        for (at, byte) in rest.bytes().enumerate() {
            // unclosed arguments end at the end of the call
            if !nesting.in_string() && end.as_bytes().first() == Some(&byte) {
                let found = rest[at..].starts_with(end);
                if found || end.starts_with(&rest[at..]) {
                    self.out.arguments(&rest[..at]);
                    self.at += at;
                    return (if found { State::AfterCall } else { State::Arguments(nesting, object) }, found);
                }
            }
            if nesting.step(byte) {
                self.out.arguments(&rest[..=at]);
                self.at += at + 1;
                return (
                    if object { State::Members(Members::after_value()) } else { State::AfterCall },
                    true,
                );
            }
        }
        self.out.arguments(rest);
        self.at = self.text.len();
        (State::Arguments(nesting, object), false)
    }

    fn members(&mut self, mut members: Members) -> (State, bool) {
        loop {
            match members.next(&self.text[self.at..]) {
                None => return (State::Members(members), false),
                Some(Event::End(at) | Event::Bad(at)) => {
                    self.at += at;
                    return (State::AfterCall, true);
                }
                Some(Event::Value(..) | Event::ValueEnd(_)) => {}
            }
        }
    }

    fn after_call(&mut self) -> (State, bool) {
        let Some(style) = &self.calls else { return (State::Content, true) };
        let rest = &self.text[self.at..];
        // between calls, after a list, and surplus closing brackets
        let body = rest.trim_start_matches([' ', '\n', '\r', '\t', ',', ';', '}', ']']);
        self.at += rest.len() - body.len();
        let end = style.ends();
        if body.is_empty() || end.starts_with(body) && body.len() < end.len() {
            return (State::AfterCall, false);
        }
        if body.starts_with('{') {
            return (State::CallHeader(Box::new(CallHeader::after(0, !style.bare))), true);
        }
        if !end.is_empty() && body.starts_with(end) {
            self.at += end.len();
        }
        (State::Start, true)
    }
}

/// The first marker in a text, and the length of the text before it or before a partial marker at the end.
fn find(text: &str, markers: &[(&'static str, bool)]) -> (usize, Option<(&'static str, bool)>) {
    for (at, _) in text.char_indices() {
        let rest = &text[at..];
        let found = markers.iter().find(|(marker, _)| rest.starts_with(marker));
        if found.is_some() || markers.iter().any(|(marker, _)| marker.starts_with(rest)) {
            return (at, found.copied());
        }
    }
    (text.len(), None)
}
