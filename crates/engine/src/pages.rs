//! KV pages: which sequence holds which page, when it is released, and the prefix cache.
//!
//! A full page has a content: its tokens after the content of the page before it, so one content stands for a whole
//! prefix. Contents are found by hash and compared in full, so a hit is never wrong. A free page keeps its content until
//! it is used for another: a later prompt may revive it.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use tern_graph::PageTable;

use crate::EngineError;

/// All pages of an engine: the only place that allocates and frees them.
#[derive(Clone, Debug)]
pub struct Pages {
    page_len: usize,
    pages: Vec<Page>,
    /// Free pages, by when they were released; those without a content come first.
    free: BTreeSet<(u64, u32)>,
    /// Pages by the hash of their content.
    known: HashMap<u64, u32>,
    /// Free pages with a content.
    cached: usize,
    /// Numbers contents and releases.
    counter: u64,
}

#[derive(Clone, Debug, Default)]
struct Page {
    holders: u32,
    /// When it was released, if it is free.
    released: u64,
    content: Option<Content>,
}

/// The tokens of a page after everything before them.
#[derive(Clone, Debug)]
struct Content {
    /// Identifies this content; never used twice.
    name: u64,
    hash: u64,
    /// The name of the content before it; 0 at the start of a sequence.
    after: u64,
    tokens: Box<[u32]>,
}

/// The pages of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageList {
    /// In the order of positions.
    pub pages: PageTable,
    /// How many of them, from the first, have a content.
    known: usize,
    /// The name of the last one's content.
    name: u64,
}

impl Pages {
    /// `total` free pages of `page_len` tokens.
    pub fn new(total: usize, page_len: usize) -> Pages {
        Pages {
            page_len,
            pages: vec![Page::default(); total],
            free: (0..total as u32).map(|page| (0, page)).collect(),
            known: HashMap::new(),
            cached: 0,
            counter: 0,
        }
    }

    /// Free pages, with or without a content.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Free pages that a prompt may revive.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Tokens per page.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Pages in total.
    pub fn total(&self) -> usize {
        self.pages.len()
    }

    /// Free pages that a new sequence of these tokens needs.
    pub fn need(&self, tokens: &[u32]) -> usize {
        let shared = self.find(tokens).filter(|&page| self.pages[page as usize].holders > 0).count();
        tokens.len().div_ceil(self.page_len) - shared
    }

    /// Acquires the longest cached prefix of `tokens`, except the page of the last one: one token must be computed to
    /// sample from.
    pub fn revive(&mut self, tokens: &[u32]) -> PageList {
        let pages: Vec<u32> = self.find(tokens).collect();
        for &page in &pages {
            self.hold(page);
        }
        let last = pages.last().and_then(|&page| self.pages[page as usize].content.as_ref());
        PageList { known: pages.len(), name: last.map_or(0, |content| content.name), pages: pages.into() }
    }

    /// Adds pages to `held` until they hold `tokens` tokens; without enough free pages nothing changes.
    #[must_use = "the pages may have run out"]
    pub fn grow(&mut self, held: &mut PageList, tokens: usize) -> bool {
        let more = tokens.div_ceil(self.page_len).saturating_sub(held.pages.len());
        if more > self.free.len() {
            return false;
        }
        for _ in 0..more {
            let Some(&(_, page)) = self.free.first() else { return false };
            self.hold(page);
            if let Some(content) = self.pages[page as usize].content.take() {
                self.known.remove(&content.hash);
            }
            held.pages.make_mut().push(page);
        }
        true
    }

    /// Caches the contents of all full pages among the first `tokens.len()` tokens, which have been computed.
    ///
    /// A page whose content exists already is replaced by the existing page, so that each content is kept once.
    pub fn remember(&mut self, held: &mut PageList, tokens: &[u32]) {
        for at in held.known..(tokens.len() / self.page_len).min(held.pages.len()) {
            let full = &tokens[at * self.page_len..(at + 1) * self.page_len];
            let hash = hash(held.name, full);
            let own = held.pages[at];
            match self.known.get(&hash).copied() {
                Some(page) if self.has(page, held.name, full) => {
                    self.hold(page);
                    held.pages.make_mut()[at] = page;
                    self.release(own);
                }
                Some(_) => return, // a hash collision: this sequence's pages are not cached
                None => {
                    self.counter += 1;
                    let content = Content { name: self.counter, hash, after: held.name, tokens: full.into() };
                    self.pages[own as usize].content = Some(content);
                    self.known.insert(hash, own);
                }
            }
            held.known = at + 1;
            let content = self.pages[held.pages[at] as usize].content.as_ref();
            held.name = content.map_or(0, |content| content.name);
        }
    }

    /// Releases all of `held`.
    pub fn give_back(&mut self, held: &mut PageList) {
        // in reverse, so that a prefix stays cached longer than what follows it
        for page in std::mem::take(held).pages.iter().rev() {
            self.release(*page);
        }
    }

    /// Checks that every page is held as often as it occurs in `held`, and free exactly if it does not occur.
    pub fn check<'a>(&self, held: impl IntoIterator<Item = &'a PageList>) -> Result<(), EngineError> {
        let broken = |text: String| Err(EngineError::Broken(text));
        let mut times = vec![0u32; self.pages.len()];
        for &page in held.into_iter().flat_map(|held| held.pages.iter()) {
            match times.get_mut(page as usize) {
                Some(n) => *n += 1,
                None => return broken(format!("page {page} of {} does not exist", self.pages.len())),
            }
        }
        for (i, (page, times)) in self.pages.iter().zip(times).enumerate() {
            if page.holders != times {
                return broken(format!("page {i} is held {times} times, and {} were counted", page.holders));
            }
            let free = self.free.contains(&(page.released, i as u32));
            if free != (times == 0) {
                let is = if free { "free" } else { "not free" };
                return broken(format!("page {i} is held {times} times and {is}"));
            }
            if let Some(content) = &page.content
                && self.known.get(&content.hash) != Some(&(i as u32))
            {
                return broken(format!("page {i} has a content that is not in the index"));
            }
        }
        let (free, contents) = (self.free.len(), self.pages.iter().filter(|p| p.content.is_some()).count());
        if free != self.pages.iter().filter(|p| p.holders == 0).count() || contents != self.known.len() {
            return broken(format!("{free} pages are free and {} known, of {contents}", self.known.len()));
        }
        Ok(())
    }

    /// The pages of the longest cached prefix, without the page of the last token.
    fn find(&self, tokens: &[u32]) -> impl Iterator<Item = u32> {
        let before_last = &tokens[..tokens.len().saturating_sub(1)];
        before_last.chunks_exact(self.page_len).scan(0, |after, full| {
            let page = *self.known.get(&hash(*after, full))?;
            if !self.has(page, *after, full) {
                return None;
            }
            *after = self.pages[page as usize].content.as_ref()?.name;
            Some(page)
        })
    }

    fn has(&self, page: u32, after: u64, tokens: &[u32]) -> bool {
        let content = self.pages[page as usize].content.as_ref();
        content.is_some_and(|c| c.after == after && *c.tokens == *tokens)
    }

    fn hold(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        if page.holders == 0 {
            self.free.remove(&(page.released, number));
            self.cached -= usize::from(page.content.is_some());
        }
        page.holders += 1;
    }

    fn release(&mut self, number: u32) {
        self.counter += 1;
        let page = &mut self.pages[number as usize];
        page.holders -= 1;
        if page.holders == 0 {
            page.released = if page.content.is_some() { self.counter } else { 0 };
            self.cached += usize::from(page.content.is_some());
            self.free.insert((page.released, number));
        }
    }
}

/// Hash of a page's tokens after a content. The same in every run, so that tests are reproducible.
fn hash(after: u64, tokens: &[u32]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((after, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(pages: &mut Pages, tokens: &[u32]) -> PageList {
        let mut held = pages.revive(tokens);
        assert!(pages.grow(&mut held, tokens.len()));
        held
    }

    #[test]
    fn pages_are_allocated_once_and_released() {
        let mut pages = Pages::new(4, 16);
        let (mut a, mut b) = (PageList::default(), PageList::default());
        assert!(pages.grow(&mut a, 17));
        assert!(pages.grow(&mut b, 16));
        assert_eq!((&*a.pages, &*b.pages, pages.free()), ([0, 1].as_slice(), [2].as_slice(), 1));
        assert!(!pages.grow(&mut b, 49), "one page is free, two are needed");
        assert!(pages.grow(&mut a, 32), "held pages count");
        pages.check([&a, &b]).unwrap();
        pages.give_back(&mut a);
        pages.check([&b]).unwrap();
        assert_eq!((pages.free(), a.pages.len()), (3, 0));
    }

    #[test]
    fn a_lost_or_doubled_page_is_detected() {
        let mut pages = Pages::new(3, 16);
        assert!(pages.grow(&mut PageList::default(), 16));
        let message = |held: &[u32]| {
            pages
                .check([&PageList { pages: held.to_vec().into(), ..PageList::default() }])
                .unwrap_err()
                .to_string()
        };
        assert_eq!(message(&[]), "the engine stopped: page 0 is held 0 times, and 1 were counted");
        assert_eq!(message(&[0, 2]), "the engine stopped: page 2 is held 1 times, and 0 were counted");
        assert_eq!(message(&[3]), "the engine stopped: page 3 of 3 does not exist");
    }

    #[test]
    fn a_prefix_is_shared_while_held_and_revived_after_release() {
        let mut pages = Pages::new(8, 2);
        let tokens = [1, 2, 3, 4, 5];
        let mut a = held(&mut pages, &tokens);
        pages.remember(&mut a, &tokens);
        assert_eq!(pages.need(&tokens), 1, "two full pages are shared");
        let mut b = held(&mut pages, &[1, 2, 3, 9]);
        assert_eq!((b.pages[0], b.pages[1] == a.pages[1]), (a.pages[0], false));
        pages.check([&a, &b]).unwrap();
        pages.give_back(&mut a);
        pages.give_back(&mut b);
        assert_eq!((pages.free(), pages.cached()), (8, 2));
        let c = pages.revive(&tokens);
        assert_eq!((c.pages.len(), c.known), (2, 2));
        assert_eq!(
            pages.revive(&[3, 4, 5]).pages.len(),
            0,
            "the same tokens at another place are another content"
        );
    }

    #[test]
    fn the_page_of_the_last_token_is_always_computed() {
        let mut pages = Pages::new(8, 2);
        let mut a = held(&mut pages, &[1, 2, 3, 4]);
        pages.remember(&mut a, &[1, 2, 3, 4]);
        assert_eq!(pages.revive(&[1, 2, 3, 4]).pages.len(), 1);
    }

    #[test]
    fn equal_contents_become_one_page() {
        let mut pages = Pages::new(8, 2);
        let tokens = [1, 2, 3, 4, 5];
        let (mut a, mut b) = (held(&mut pages, &tokens), held(&mut pages, &tokens));
        pages.remember(&mut a, &tokens[..4]);
        pages.remember(&mut b, &tokens[..4]);
        assert_eq!((&a.pages[..2], pages.free()), (&b.pages[..2], 8 - 4));
        pages.check([&a, &b]).unwrap();
    }

    #[test]
    fn contents_with_the_same_hash_share_no_page() {
        // the same tokens after another content, and other tokens after the same one
        for (tokens, collides) in [([1, 2, 1, 2, 5], 1), ([7, 8, 3, 4, 5], 0)] {
            let mut pages = Pages::new(8, 2);
            let mut a = held(&mut pages, &[1, 2, 9]);
            pages.remember(&mut a, &[1, 2]);
            let mut b = held(&mut pages, &tokens);
            pages.remember(&mut b, &tokens[..2 * collides]);
            let full = &tokens[2 * collides..][..2];
            pages.known.insert(hash(b.name, full), a.pages[0]);
            let (before, found) = (b.clone(), pages.find(&tokens).count());
            pages.remember(&mut b, &tokens);
            assert_eq!((b.pages, found), (before.pages, collides), "{full:?} is not the content of page 0");
            assert_eq!(b.known, collides, "it is not cached");
        }
    }

    #[test]
    fn what_follows_is_evicted_before_the_prefix() {
        let mut pages = Pages::new(3, 2);
        let tokens = [1, 2, 3, 4, 5, 6];
        let mut a = held(&mut pages, &tokens);
        pages.remember(&mut a, &tokens);
        pages.give_back(&mut a);
        let mut other = held(&mut pages, &[9, 9]);
        assert_eq!(pages.revive(&[1, 2, 3, 4, 5, 6, 7]).pages.len(), 2);
        pages.give_back(&mut other);
    }
}
