//! The fields that every completion object begins with.

use serde::Serialize;

use crate::FINGERPRINT;
use crate::ids;
use crate::request::prompt::now;

/// What identifies a reply in all its chunks.
pub(super) struct ReplyId {
    id: String,
    created: u64,
    model: String,
}

/// The first fields of a reply or of a chunk.
#[derive(Serialize)]
pub(super) struct ReplyHeader<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
}

impl ReplyId {
    /// A new id that starts with `prefix`.
    pub(super) fn new(prefix: &str, model: String) -> ReplyId {
        ReplyId { id: ids::id(prefix), created: now(), model }
    }

    pub(super) fn header(&self, object: &'static str) -> ReplyHeader<'_> {
        let ReplyId { id, created, model } = self;
        ReplyHeader { id, object, created: *created, model, system_fingerprint: FINGERPRINT }
    }
}
