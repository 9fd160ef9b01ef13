//! Parts of an answer on their way out, without the whitespace around markers.

use super::Part;

/// What a text is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Reasoning,
    Content,
}

/// Parts to give out, and whitespace of which it is not known yet whether it stands before a marker.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) parts: Vec<Part>,
    space: String,
    /// Nothing but whitespace since a marker: it is left out.
    pub(super) after_marker: bool,
    calls: usize,
}

impl Output {
    /// Nothing yet, at the beginning of a text or after a marker.
    pub(super) fn new(after_marker: bool) -> Output {
        Output { after_marker, ..Output::default() }
    }

    /// Text, without the whitespace after a marker, and without that at its end until more text follows.
    pub(super) fn say(&mut self, kind: Kind, text: &str) {
        let text = if self.after_marker { text.trim_ascii_start() } else { text };
        let said = text.trim_ascii_end();
        if !said.is_empty() {
            self.after_marker = false;
            self.give_space(kind);
            self.give(kind, said);
        }
        self.space.push_str(&text[said.len()..]);
    }

    /// The last text.
    pub(super) fn end(&mut self, kind: Kind, text: &str) {
        self.say(kind, text);
        self.give_space(kind);
    }

    /// A marker was read: the whitespace around it is nobody's.
    pub(super) fn marker(&mut self) {
        self.space.clear();
        self.after_marker = true;
    }

    /// The whitespace, now that it stands before no marker.
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

    /// A call begins.
    pub(super) fn call(&mut self, name: String) {
        self.marker();
        self.parts.push(Part::CallBegin { index: self.calls, name });
        self.calls += 1;
    }

    /// Whether a call began.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// More of the arguments of the last call.
    pub(super) fn arguments(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(Part::CallArguments { index: self.calls.saturating_sub(1), text: text.into() });
        }
    }
}
