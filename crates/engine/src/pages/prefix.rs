//! The cached prefix of a prompt: pages, and what their end needs so that a sequence can continue there.

use super::tail::Tail;
use super::{Pages, Text, hash};

/// The cached prefix of a text.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    /// The contents of its full pages.
    pub(super) contents: Vec<u64>,
    /// The tokens after them, if the cached text ends there.
    pub(super) tail: Option<Tail>,
    /// Full pages that are cached: more than `contents` if no window or snapshot is at their end.
    pub(super) cached: usize,
}

impl Prefix {
    /// Tokens that need not be computed.
    pub(super) fn tokens(&self, page_len: usize) -> usize {
        self.contents.len() * page_len + self.tail.map_or(0, |tail| tail.len)
    }
}

impl Pages {
    /// The longest cached prefix, without the last token: the window before its end
    /// exists, and a snapshot there.
    pub(super) fn find<'a>(&self, text: impl Into<Text<'a>>) -> Prefix {
        let text = text.into();
        let before_last = text.part(0..text.len().saturating_sub(1));
        let contents = before_last.tokens.chunks_exact(self.page_len).scan(0, |after, full| {
            let full = Text { tokens: full, ..text };
            let name = *self.known.get(&hash(*after, full))?;
            let found = self.is_content(name, *after, full);
            *after = name;
            found.then_some(name)
        });
        let mut contents: Vec<u64> = contents.collect();
        let cached = contents.len();
        let last = contents.last().copied().unwrap_or(0);
        let tail = self.find_tail(last, before_last.part(cached * self.page_len..before_last.len()));
        if tail.is_none() {
            contents.truncate(self.longest(&contents));
        }
        Prefix { contents, tail, cached }
    }

    /// How many of the pages with these contents are a prefix at whose end the window and a snapshot exist.
    fn longest(&self, contents: &[u64]) -> usize {
        // window pages in a row up to here, and the longest prefix that has all
        let (mut present, mut longest) = (0, 0);
        for (i, content) in contents.iter().enumerate() {
            let in_window = self.window.as_ref().is_none_or(|window| window.pool.find(*content).is_some());
            present = if in_window { present + 1 } else { 0 };
            let window = i + 1 - self.first_seen((i + 1) * self.page_len) <= present;
            if window && self.slots.as_ref().is_none_or(|slots| slots.has(*content)) {
                longest = i + 1;
            }
        }
        longest
    }
}
