//! The pieces of a streamed response: server-sent events, or lines of JSON.

use axum::body::Bytes;
use serde::Serialize;

/// How the pieces of a stream are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON object per line.
    Lines,
}

impl Framing {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Framing::Events => "text/event-stream; charset=utf-8",
            Framing::Lines => "application/x-ndjson",
        }
    }

    /// What is sent while nothing happens; lines of JSON have no comments.
    pub(crate) fn keep_alive(self) -> Option<&'static [u8]> {
        match self {
            Framing::Events => Some(b": keep-alive\n\n"),
            Framing::Lines => None,
        }
    }
}

/// Pieces that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds an event without a name.
    pub(crate) fn data(&mut self, data: &impl Serialize) {
        self.bytes.extend_from_slice(b"data: ");
        self.json(data);
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// Adds an event with a name.
    pub(crate) fn event(&mut self, name: &str, data: &impl Serialize) {
        self.bytes.extend_from_slice(format!("event: {name}\n").as_bytes());
        self.data(data);
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, data: &impl Serialize) {
        self.json(data);
        self.bytes.push(b'\n');
    }

    /// Adds `[DONE]`, the end of a stream of the OpenAI API.
    pub(crate) fn done(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]\n\n");
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    fn json(&mut self, data: &impl Serialize) {
        let written = serde_json::to_writer(&mut self.bytes, data);
        debug_assert!(written.is_ok(), "events serialize without errors");
    }
}
