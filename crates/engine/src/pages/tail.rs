//! The end of a text: the tokens after its last full page, and the state after them.
//!
//! With recurrent layers a conversation would otherwise continue at the last page border and compute
//! up to a page again. Full pages are shared, a tail is not: the sequence that continues writes the
//! rest of the page, so the tail leaves the cache with it. A prompt that continues in another way
//! finds the page borders before it.

use super::{PageList, Pages, Text, hash};
use crate::slots::Snapshot;

/// A cached end of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// The content of its page and its snapshot.
    pub(super) name: u64,
    /// Tokens; fewer than a page has.
    pub(super) len: usize,
}

impl Pages {
    /// Caches the end of a text, which is computed, before its pages are released.
    pub(crate) fn keep_tail(&mut self, held: &mut PageList, text: Text<'_>) {
        let Some(tail) = text.tokens.get(held.known * self.page_len..) else { return };
        let tail = Text { tokens: tail, ..text };
        let Some(&page) = held.pages.get(held.known) else { return };
        // a window would need its last pages, too
        if tail.tokens.is_empty() || tail.len() >= self.page_len || self.window.is_some() {
            return;
        }
        let hash = hash(held.name, tail);
        let Some(slots) = self.slots.as_mut().filter(|_| !self.known.contains_key(&hash)) else { return };
        let (name, position) = (self.names + 1, text.len());
        let snapshot = Snapshot { name, position, stays: true, last_stays: true };
        if slots.snapshot(&mut held.state, snapshot) {
            let named = self.name_content(hash, held.name, tail);
            debug_assert_eq!(named, name, "the next name");
            self.full.keep(page, name);
        }
    }

    /// The longest cached text that ends in the page after the content `after`, and that `text` continues.
    pub(super) fn find_tail(&self, after: u64, text: Text<'_>) -> Option<Tail> {
        let slots = self.slots.as_ref()?;
        let lens = (1..self.page_len.min(text.len() + 1)).rev();
        let tail = |len: usize| {
            let name = *self.known.get(&hash(after, text.part(0..len)))?;
            (self.is_content(name, after, text.part(0..len)) && slots.has(name)).then_some(Tail { name, len })
        };
        lens.filter_map(tail).next()
    }

    /// Holds the page of a tail, which leaves the cache.
    pub(super) fn take_tail(&mut self, tail: Tail) -> Option<u32> {
        let page = self.full.find(tail.name)?;
        self.full.hold(page);
        self.full.forget(tail.name);
        self.forget(tail.name);
        Some(page)
    }
}
