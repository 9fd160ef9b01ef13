//! Incremental parsing of an answer into reasoning, content and tool calls.

mod call_header;
mod calls;
mod channel;
mod elements;
mod json;
mod literal;
mod loose;
mod output;
mod part;
mod tags;
mod whole_calls;

use std::sync::Arc;

use self::call_header::CallHeader;
use self::channel::{Header, Message};
use self::json::{Members, Nesting};
use self::literal::Literals;
use self::output::{Kind, Output};
use self::tags::Tags;
use crate::markup::{CallStyle, ChannelStyle, Markup, ReasoningStyle};
use crate::tool_schemas::ToolSchemas;

pub use self::part::Part;

/// Parses an answer piece by piece. The result does not depend on how the answer is divided into pieces.
///
/// Only text that may still become markup is held back; if it does not, it is content.
///
/// ```
/// use std::sync::Arc;
/// use tern_text::{AnswerParser, Markup, Part, ToolSchemas};
/// let markup = Markup::of("... </think> ... <tool_call>\n{\"name\": ...}\n</tool_call>");
/// let tools = Some(Arc::new(ToolSchemas::default()));
/// let mut answer = AnswerParser::new(&markup, "<|im_start|>assistant\n<think>\n", tools);
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
    channels: Option<ChannelStyle>,
    schemas: Arc<ToolSchemas>,
    /// The markers to search for in content.
    markers: Vec<&'static str>,
    /// What each of them is.
    kinds: Vec<Marker>,
    state: State,
    /// Text that is not processed yet: from `at` on.
    text: String,
    at: usize,
    out: Output,
}

/// What a marker in content is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Marker {
    /// The start of a call.
    Call,
    /// The start of a message's header.
    Header,
    /// Not part of the content.
    Dropped,
}

#[derive(Debug)]
enum State {
    /// Only whitespace since the beginning, or since a marker.
    Start,
    Reasoning,
    Content,
    /// Possibly at the header of a message.
    Header,
    /// Possibly at the start of a call.
    CallHeader(Box<CallHeader>),
    /// In a call's arguments, which may be a member of an object.
    Arguments(Nesting, bool),
    /// In a call's arguments, which are not JSON.
    Body(Box<Body>),
    /// In the object around the arguments, after them.
    Members(Members),
    /// At text that may consist of calls without markup.
    WholeCalls,
    /// After a call and this many of the markers that end it, before the others or another call.
    AfterCall(usize),
}

/// Arguments that are converted to JSON.
#[derive(Debug)]
enum Body {
    Tags(Tags),
    Literals(Literals),
}

impl AnswerParser {
    /// An answer to a prompt that ends with `prompt_tail`: a prompt may end inside reasoning.
    ///
    /// Without `tools` calls are not parsed, and their markup is content.
    pub fn new(markup: &Markup, prompt_tail: &str, tools: Option<Arc<ToolSchemas>>) -> AnswerParser {
        let Markup { reasoning, channels, .. } = *markup;
        let calls = markup.calls.filter(|_| tools.is_some());
        let mut known = Vec::new();
        if let Some(style) = calls {
            // headers name the function
            let in_header = channels.is_some_and(|channels| !channels.calls.is_empty());
            known.extend(style.begins().filter(|_| !in_header).map(|text| (text, Marker::Call)));
            known.extend(style.around().map(|text| (text, Marker::Dropped)));
        }
        if let Some(style) = &channels {
            known.extend(style.markers().map(|text| (text, Marker::Header)));
            known.extend(style.ends.iter().map(|text| (*text, Marker::Dropped)));
        }
        known.extend(reasoning.iter().flat_map(|style| style.dropped).map(|&text| (text, Marker::Dropped)));
        let ends_with = |text: &str| prompt_tail.trim_ascii_end().ends_with(text);
        let state = match reasoning {
            Some(style) if ends_with(style.begin) => State::Reasoning,
            _ => State::Start,
        };
        let after_marker = reasoning.is_some_and(|style| ends_with(style.begin) || ends_with(style.end));
        let out = Output::new(after_marker);
        let (markers, kinds) = known.into_iter().unzip();
        let schemas = tools.unwrap_or_default();
        AnswerParser {
            reasoning,
            calls,
            channels,
            schemas,
            markers,
            kinds,
            state,
            text: String::new(),
            at: 0,
            out,
        }
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
        if matches!(self.state, State::WholeCalls) {
            self.state = State::Content;
            match whole_calls::parse(&self.text[self.at..], &self.schemas) {
                Some(calls) => {
                    self.at = self.text.len();
                    for call in calls {
                        self.out.call(call.name);
                        self.out.arguments(&call.arguments);
                    }
                }
                None => while self.step() {}, // it may have markers
            }
        }
        let rest = self.text.split_off(self.at);
        self.text.clear();
        self.at = 0;
        match std::mem::replace(&mut self.state, State::Content) {
            // a truncated header
            State::Header
                if self.channels.is_some_and(|style| style.markers().any(|marker| rest.contains(marker))) => {
            }
            State::Start | State::Content | State::Header | State::WholeCalls => {
                self.out.end(Kind::Content, &rest)
            }
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
            State::Body(body) => {
                let mut json = String::new();
                if let Body::Tags(tags) = &*body {
                    tags.cut_off(&rest, &mut json);
                }
                self.out.arguments(&json);
            }
            State::Members(_) | State::AfterCall(_) => {}
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
            State::Header => self.message_header(),
            State::CallHeader(header) => self.header(header),
            State::Arguments(nesting, object) => self.arguments(nesting, object),
            State::Body(body) => self.body(body),
            State::Members(members) => self.members(members),
            State::WholeCalls => self.whole_calls(),
            State::AfterCall(ended) => self.after_call(ended),
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
            // empty reasoning whose beginning is omitted
            if self.out.is_empty() && body.starts_with(style.end) {
                self.at += style.end.len();
                self.out.marker();
                return (State::Start, true);
            }
            if self.out.is_empty() && style.end.starts_with(body) {
                return (State::Start, false);
            }
        }
        if let Some(style) = &self.channels
            && channel::header(body, style, &self.schemas) != Header::Not
        {
            return (State::Header, true);
        }
        match &self.calls {
            Some(style) if style.bare && body.starts_with(['{', '[']) => {
                (State::CallHeader(Box::new(CallHeader::after(None, false, style))), true)
            }
            // whatever the template says, many models write their calls as plain objects
            Some(_) if self.out.is_without_content() && body.starts_with(['{', '[', '`']) => {
                (State::WholeCalls, true)
            }
            _ => (State::Content, true),
        }
    }

    /// Holds text back while it may consist of calls; the end decides.
    fn whole_calls(&mut self) -> (State, bool) {
        match whole_calls::may_begin(&self.text[self.at..], &self.schemas) {
            true => (State::WholeCalls, false),
            false => (State::Content, true),
        }
    }

    fn message_header(&mut self) -> (State, bool) {
        let Some(style) = &self.channels else { return (State::Content, true) };
        let rest = &self.text[self.at..];
        let (message, length) = match channel::header(rest, style, &self.schemas) {
            Header::Wait => return (State::Header, false),
            Header::Not => {
                // the rest of its marker is no marker
                let first = usize::from(style.is_marked(rest));
                self.out.say(Kind::Content, &rest[..first]);
                self.at += first;
                return (State::Content, true);
            }
            Header::Of(message, length) => (message, length),
        };
        match message {
            Message::Call(name) if self.calls.is_some() => {
                (State::CallHeader(Box::new(CallHeader::named(name, length))), true)
            }
            Message::Reasoning if self.reasoning.is_some() => {
                self.at += length;
                self.out.marker();
                (State::Reasoning, true)
            }
            _ => {
                self.at += length;
                self.out.marker();
                (State::Content, true)
            }
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
        let (clear, found) = find(rest, &[style.end]);
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
            Some(found) => match (self.kinds[found], &self.calls) {
                (Marker::Header, _) => (State::Header, true),
                (Marker::Call, Some(style)) => {
                    let header = CallHeader::after(Some(self.markers[found]), true, style);
                    (State::CallHeader(Box::new(header)), true)
                }
                _ => {
                    self.at += self.markers[found].len();
                    self.out.marker();
                    (State::Start, true)
                }
            },
        }
    }
}

/// The first marker in a text, and the length of the text before it or before a partial marker at the end.
fn find(text: &str, markers: &[&str]) -> (usize, Option<usize>) {
    for (at, _) in text.char_indices() {
        let rest = &text[at..];
        let found = markers.iter().position(|marker| rest.starts_with(marker));
        if found.is_some() || markers.iter().any(|marker| marker.starts_with(rest)) {
            return (at, found);
        }
    }
    (text.len(), None)
}
