//! Transitions inside tool calls: from the header of a call to the text after it.

use super::call_header::{CallHeader, Verdict};
use super::json::{Event, Members, Nesting};
use super::literal::{Literals, Progress};
use super::output::Kind;
use super::tags::Tags;
use super::{AnswerParser, Body, State};
use crate::markup::CallForm;

impl AnswerParser {
    pub(super) fn header(&mut self, mut header: Box<CallHeader>) -> (State, bool) {
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
            Verdict::Body { name, from } => {
                let mut json = String::new();
                let body = match style.form {
                    CallForm::Literal(literal) => Body::Literals(Literals::arguments(literal, &mut json)),
                    CallForm::Tagged(tags) => {
                        let ends = style.ends().collect();
                        Body::Tags(Tags::new(tags, ends, &name, &self.schemas, &mut json))
                    }
                    _ => return (State::Content, true), // unreachable: other forms have JSON
                };
                self.out.call(name);
                self.out.arguments(&json);
                self.at += from;
                (State::Body(Box::new(body)), true)
            }
            Verdict::Whole { name, arguments, to, ended } => {
                self.out.call(name);
                self.out.arguments(&arguments);
                self.at += to;
                (if ended { State::AfterCall(0) } else { State::Members(Members::after_value()) }, true)
            }
        }
    }

    pub(super) fn arguments(&mut self, mut nesting: Nesting, object: bool) -> (State, bool) {
        let end = self.calls.and_then(|style| style.ends().next()).unwrap_or("");
        let rest = &self.text[self.at..];
        for (at, byte) in rest.bytes().enumerate() {
            // unclosed arguments end at the end of the call
            if !nesting.in_string() && end.as_bytes().first() == Some(&byte) {
                let found = rest[at..].starts_with(end);
                if found || end.starts_with(&rest[at..]) {
                    self.out.arguments(&rest[..at]);
                    self.at += at;
                    return (
                        if found { State::AfterCall(0) } else { State::Arguments(nesting, object) },
                        found,
                    );
                }
            }
            if nesting.step(byte) {
                self.out.arguments(&rest[..=at]);
                self.at += at + 1;
                return (
                    if object { State::Members(Members::after_value()) } else { State::AfterCall(0) },
                    true,
                );
            }
        }
        self.out.arguments(rest);
        self.at = self.text.len();
        (State::Arguments(nesting, object), false)
    }

    pub(super) fn members(&mut self, mut members: Members) -> (State, bool) {
        loop {
            match members.next(&self.text[self.at..]) {
                None => return (State::Members(members), false),
                Some(Event::End(at) | Event::Bad(at)) => {
                    self.at += at;
                    return (State::AfterCall(0), true);
                }
                Some(Event::Value(..) | Event::ValueEnd(_)) => {}
            }
        }
    }

    pub(super) fn body(&mut self, mut body: Box<Body>) -> (State, bool) {
        let mut json = String::new();
        let rest = &self.text[self.at..];
        let (used, progress) = match &mut *body {
            Body::Tags(tags) => tags.read(rest, &mut json),
            Body::Literals(literals) => literals.read(rest, &mut json),
        };
        self.at += used;
        if progress == Progress::Broken {
            match &mut *body {
                Body::Tags(tags) => tags.close(&mut json),
                Body::Literals(literals) => literals.close(&mut json),
            }
        }
        self.out.arguments(&json);
        match progress {
            Progress::More => (State::Body(body), false),
            Progress::Done => (State::AfterCall(0), true),
            Progress::Broken => (State::Content, true), // what follows is no argument, and not lost
        }
    }

    pub(super) fn after_call(&mut self, ended: usize) -> (State, bool) {
        let Some(style) = &self.calls else { return (State::Content, true) };
        let rest = &self.text[self.at..];
        // between calls, after a list, and surplus closing brackets
        let between: &[char] = match style.form {
            _ if ended > 0 => &[' ', '\n', '\r', '\t'],
            CallForm::Tagged(_) => &[' ', '\n', '\r', '\t'],
            _ => &[' ', '\n', '\r', '\t', ',', ';', '}', ']'],
        };
        let body = rest.trim_start_matches(between);
        self.at += rest.len() - body.len();
        if body.is_empty() {
            return (State::AfterCall(ended), false);
        }
        for (at, end) in style.ends().enumerate().skip(ended) {
            if body.starts_with(end) {
                self.at += end.len();
                let all = at + 1 == style.ends().count();
                return (if all { State::Start } else { State::AfterCall(at + 1) }, true);
            }
            if end.starts_with(body) {
                return (State::AfterCall(ended), false);
            }
        }
        let more = match style.form {
            CallForm::Tagged(_) => false,
            CallForm::Literal(_) => style.begin.is_empty() && ended == 0,
            _ => ended == 0 && body.starts_with('{'),
        };
        if more {
            // a name without a marker may also be content
            let marked = !style.bare && !matches!(style.form, CallForm::Literal(_));
            return (State::CallHeader(Box::new(CallHeader::after(None, marked, style))), true);
        }
        (State::Start, true)
    }
}
