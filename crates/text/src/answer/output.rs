//! Output of the parts of an answer, without the whitespace around markers.

use super::Part;

/// The kind of a text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Reasoning,
    Content,
}

/// Parts to return, and trailing whitespace, which is dropped if a marker follows.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) parts: Vec<Part>,
    space: String,
    /// Only whitespace since a marker: it is dropped.
    pub(super) after_marker: bool,
    calls: usize,
    has_text: bool,
    has_content: bool,
}

impl Output {
    /// Empty, at the beginning of a text or after a marker.
    pub(super) fn new(after_marker: bool) -> Output {
        Output { after_marker, ..Output::default() }
    }

    /// Adds text without whitespace after a marker; whitespace at its end waits for more text.
    pub(super) fn say(&mut self, kind: Kind, text: &str) {
        let text = if self.after_marker { text.trim_ascii_start() } else { text };
        let said = text.trim_ascii_end();
        if !said.is_empty() {
            self.after_marker = false;
            self.has_text = true;
            self.has_content |= matches!(kind, Kind::Content);
            self.give_space(kind);
            self.give(kind, said);
        }
        self.space.push_str(&text[said.len()..]);
    }

    /// Adds the last text.
    pub(super) fn end(&mut self, kind: Kind, text: &str) {
        self.say(kind, text);
        self.give_space(kind);
    }

    /// After a marker: the whitespace around it is dropped.
    pub(super) fn marker(&mut self) {
        self.space.clear();
        self.after_marker = true;
    }

    /// Adds the waiting whitespace, since no marker follows it.
    pub(super) fn give_space(&mut self, kind: Kind) {
        let space = std::mem::take(&mut self.space);
        self.give(kind, &space);
    }

    fn give(&mut self, kind: Kind, text: &str) {
        match (kind, self.parts.last_mut()) {
            _ if text.is_empty() => {}
            (Kind::Reasoning, Some(Part::Reasoning(last))) | (Kind::Content, Some(Part::Content(last))) => {
                last.push_str(text);
            }
            (Kind::Reasoning, _) => self.parts.push(Part::Reasoning(text.into())),
            (Kind::Content, _) => self.parts.push(Part::Content(text.into())),
        }
    }

    /// Starts a call.
    pub(super) fn call(&mut self, name: String) {
        self.marker();
        self.parts.push(Part::CallBegin { index: self.calls, name });
        self.calls += 1;
    }

    /// Whether there was neither text nor a call.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_text && self.calls == 0
    }

    /// Whether there was neither content nor a call; there may be reasoning.
    pub(super) fn is_without_content(&self) -> bool {
        !self.has_content && self.calls == 0
    }

    /// Whether there was a call.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Adds to the arguments of the last call.
    pub(super) fn arguments(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(Part::CallArguments { index: self.calls.saturating_sub(1), text: text.into() });
        }
    }
}
