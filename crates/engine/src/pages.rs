//! KV pages: which sequence holds which page, when it is released, and the prefix cache.
//!
//! A full page has a content: its tokens after the content of the page before it, so one content stands for a
//! whole prefix. Contents are found by hash and compared in full, so a hit is never wrong. A free page keeps
//! its content until it is used for another: a later prompt may revive it.
//!
//! Layers with a window may have their own pages. A sequence holds those that its next token sees; what falls
//! out of the window is released, and keeps its content as well. A prefix is found if all its pages are
//! cached, and those of its end that the window covers.
//!
//! Models with recurrent layers continue from a state, so their prefixes also need a snapshot at their end,
//! which has the content of the last page. What is computed with adapters depends on them, so they are part
//! of a content. The end of a text, which is not a full page, is cached for them, too (`tail.rs`).

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use tern_graph::{AdapterScales, CachePart, PageTable, StateSlots};

use crate::disk::{Key, Keys};
use crate::pool::Pool;
use crate::slots::{HeldState, NextStep, SlotCounts, Slots, Snapshot};
use crate::snapshots::Marks;
use crate::{Capacity, EngineError};

/// All pages and state slots of an engine: the only place that allocates and frees them.
#[derive(Clone, Debug)]
pub struct Pages {
    page_len: usize,
    /// Pages of layers that keep all tokens. Every content has one.
    full: Pool,
    window: Option<WindowPool>,
    /// States of recurrent layers.
    slots: Option<Slots>,
    /// Contents by name.
    contents: HashMap<u64, Content>,
    /// Names of contents by hash.
    known: HashMap<u64, u64>,
    /// Names given so far; none is used twice.
    names: u64,
    /// The keys of contents on disk, if there is a cache on disk.
    disk: Option<Keys>,
    /// What has left memory and is not written yet.
    evicted: Vec<Evicted>,
}

/// Pages of layers with a window.
#[derive(Clone, Debug)]
struct WindowPool {
    /// Keys that a token sees, itself included.
    tokens: usize,
    /// Pages that the keys of one token are in, at most.
    span: usize,
    pool: Pool,
}

/// The tokens of a page after everything before them.
#[derive(Clone, Debug)]
struct Content {
    hash: u64,
    /// The name of the content before it; 0 at the start of a sequence.
    after: u64,
    adapters: AdapterScales,
    tokens: Box<[u32]>,
    /// Its key on disk, and that of the content before it.
    key: Option<Key>,
    after_key: Option<Key>,
}

/// Tokens of a sequence, and the adapters that they are computed with: what pages are cached by.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The first tokens of the sequence, or some after a content.
    pub tokens: &'a [u32],
    /// Its adapters.
    pub adapters: &'a AdapterScales,
}

impl<'a> Text<'a> {
    /// Some of the tokens.
    fn part(self, range: std::ops::Range<usize>) -> Text<'a> {
        Text { tokens: &self.tokens[range], ..self }
    }

    fn len(self) -> usize {
        self.tokens.len()
    }
}

/// Without adapters.
impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for Text<'a> {
    fn from(tokens: &'a T) -> Text<'a> {
        Text { tokens: tokens.as_ref(), adapters: &AdapterScales::NONE }
    }
}

/// The pages and state slots of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageList {
    /// In the order of positions.
    pub pages: PageTable,
    /// The same for layers with a window, if they have their own pages.
    pub window_pages: PageTable,
    /// How many entries of `window_pages`, from the first, are released and 0.
    released: usize,
    /// How many pages, from the first, have a content.
    known: usize,
    /// The name of the last one's content.
    name: u64,
    state: HeldState,
    /// Where snapshots are taken; `None` without recurrent layers.
    marks: Option<Marks>,
    /// The position of the last snapshot, or where it began.
    snapshot: usize,
}

/// Free pages that a sequence needs to start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Pages of layers that keep all tokens.
    pub pages: usize,
    /// Pages of layers with a window.
    pub window_pages: usize,
}

impl PageList {
    /// How many of its pages, from the first, have a content.
    pub fn prefix(&self) -> usize {
        self.known
    }

    /// How many tokens of the sequence were cached when it acquired its pages, if nothing was computed since.
    pub(crate) fn start(&self) -> usize {
        self.snapshot
    }

    /// Where the next step from `position`, which could go up to `end`, stops; `last` is
    /// the end of what is known.
    pub(crate) fn stop(&self, position: usize, end: usize, last: usize) -> usize {
        self.marks.map_or(end, |marks| marks.stop(position, end, last))
    }
}

impl Pages {
    /// All pages of a runner, free.
    pub fn new(capacity: &Capacity) -> Pages {
        let window = capacity.window.map(|window| WindowPool {
            tokens: window.tokens,
            span: window.span(capacity.page_len),
            pool: Pool::new(window.pages),
        });
        Pages {
            page_len: capacity.page_len,
            full: Pool::new(capacity.pages),
            window,
            slots: capacity.state.map(|state| Slots::new(state.slots)),
            contents: HashMap::new(),
            known: HashMap::new(),
            names: 0,
            disk: None,
            evicted: vec![],
        }
    }

    /// Free pages, with or without a content.
    pub fn free(&self) -> usize {
        self.full.free()
    }

    /// Free pages that a prompt may revive.
    pub fn cached(&self) -> usize {
        self.full.cached()
    }

    /// Tokens per page.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Pages in total.
    pub fn total(&self) -> usize {
        self.full.total()
    }

    /// Pages of layers with a window: free ones, free ones with a content, and all.
    pub fn window_counts(&self) -> [usize; 3] {
        self.window.as_ref().map_or([0; 3], |w| [w.pool.free(), w.pool.cached(), w.pool.total()])
    }

    /// State slots; zeros without recurrent layers.
    pub(crate) fn slot_counts(&self) -> SlotCounts {
        self.slots.as_ref().map_or(SlotCounts::default(), Slots::counts)
    }

    /// Free pages that a new sequence of this text needs; `revives`: it may start with a cached prefix.
    pub fn need<'a>(&self, text: impl Into<Text<'a>>, revives: bool) -> Need {
        let text = text.into();
        let prefix = if revives { self.find(text).contents } else { vec![] };
        let blocks = text.len().div_ceil(self.page_len);
        let held = |pool: &Pool, contents: &[u64]| {
            contents.iter().filter_map(|c| pool.find(*c)).filter(|page| pool.is_held(*page)).count()
        };
        let window_pages = self.window.as_ref().map_or(0, |window| {
            blocks.min(window.span)
                - held(&window.pool, &prefix[self.first_seen(prefix.len() * self.page_len)..])
        });
        Need { pages: blocks - held(&self.full, &prefix), window_pages }
    }

    /// Whether the pages of `need` are free, and `spare` more of each kind.
    pub fn has(&self, need: Need, spare: usize) -> bool {
        let window_free = self.window.as_ref().map_or(usize::MAX, |window| window.pool.free());
        self.full.free() >= need.pages + spare && window_free >= need.window_pages.saturating_add(spare)
    }

    /// Acquires the longest cached prefix of a text, except the page of the last one: one token must be
    /// computed to sample from.
    pub fn revive<'a>(&mut self, text: impl Into<Text<'a>>) -> PageList {
        let text = text.into();
        let found = self.find(text);
        let (start, prefix) = (found.tokens(self.page_len), &found.contents);
        let mut pages: Vec<u32> = prefix.iter().filter_map(|content| self.full.find(*content)).collect();
        pages.iter().for_each(|page| self.full.hold(*page));
        let released = self.first_seen(start).min(prefix.len());
        let mut window_pages = vec![];
        if let Some(window) = &mut self.window {
            window_pages.resize(released, 0);
            window_pages.extend(prefix[released..].iter().filter_map(|content| window.pool.find(*content)));
            window_pages[released..].iter().for_each(|page| window.pool.hold(*page));
        }
        let (known, name) = (prefix.len(), prefix.last().copied().unwrap_or(0));
        let end = found.tail.map_or(name, |tail| tail.name);
        let state = self.slots.as_mut().map_or(HeldState::default(), |slots| slots.restore(end, start));
        pages.extend(found.tail.and_then(|tail| self.take_tail(tail)));
        let marks = |_: &Slots| Marks::new(self.page_len, text.len(), known, found.cached);
        let marks = self.slots.as_ref().map(marks);
        let (pages, window_pages) = (pages.into(), window_pages.into());
        PageList { pages, window_pages, released, known, name, state, marks, snapshot: start }
    }

    /// Exchanges the pages of a sequence of this text, nothing of which was computed since it acquired them,
    /// for a longer cached prefix, if there is one now and its pages are free.
    pub fn revive_longer<'a>(&mut self, held: &mut PageList, text: impl Into<Text<'a>>) {
        let text = text.into();
        let found = self.find(text);
        let prefix = &found.contents;
        let first_seen = self.first_seen(prefix.len() * self.page_len).min(prefix.len());
        let fits = self.window.as_ref().is_none_or(|WindowPool { pool, .. }| {
            let pages = prefix[first_seen..].iter().filter_map(|content| pool.find(*content));
            pages.filter(|page| !pool.is_held(*page)).count() < pool.free() // and one for the next token
        });
        if found.tokens(self.page_len) <= held.start() || !fits {
            return;
        }
        self.give_back(held);
        *held = self.revive(text);
        let next = held.pages.len() * self.page_len + 1;
        let grown = self.grow(held, text.len(), next);
        debug_assert!(grown, "it held as many pages before");
    }

    /// Adds pages to `held` until they hold `tokens` tokens, and `window_tokens` in layers with a window;
    /// without enough free pages nothing changes.
    #[must_use = "the pages may have run out"]
    pub fn grow(&mut self, held: &mut PageList, tokens: usize, window_tokens: usize) -> bool {
        let more = tokens.div_ceil(self.page_len).saturating_sub(held.pages.len());
        let window_more = window_tokens.div_ceil(self.page_len).saturating_sub(held.window_pages.len());
        if !self.has(Need { pages: more, window_pages: window_more }, 0) {
            return false;
        }
        for _ in 0..more {
            let Some(taken) = self.full.take() else { return false };
            held.pages.make_mut().push(taken.page);
            if let Some(lost) = taken.lost {
                self.evict_all(lost, taken.page);
                self.forget(lost);
            }
        }
        self.grow_window(held, window_tokens);
        true
    }

    /// Adds pages of layers with a window to `held` until they hold `tokens` tokens, or none is free; returns
    /// how many of the tokens fit.
    pub fn grow_window(&mut self, held: &mut PageList, tokens: usize) -> usize {
        if self.window.is_none() {
            return tokens;
        }
        while held.window_pages.len() * self.page_len < tokens
            && let Some(taken) = self.window.as_mut().and_then(|window| window.pool.take())
        {
            held.window_pages.make_mut().push(taken.page);
            taken.lost.into_iter().for_each(|lost| self.evict(lost, CachePart::WindowPage, taken.page));
        }
        tokens.min(held.window_pages.len() * self.page_len)
    }

    /// Releases the pages after the first `tokens` tokens, which hold rejected drafts only.
    pub(crate) fn shrink(&mut self, held: &mut PageList, tokens: usize) {
        let pages = tokens.div_ceil(self.page_len);
        if held.pages.len() > pages {
            held.pages.make_mut().drain(pages..).rev().for_each(|page| self.full.release(page));
        }
        if let Some(window) = self.window.as_mut().filter(|_| held.window_pages.len() > pages) {
            held.window_pages.make_mut().drain(pages..).rev().for_each(|page| window.pool.release(page));
        }
    }

    /// Returns to the state before the newest step.
    pub(crate) fn roll_back_state(&mut self, held: &mut PageList) {
        if let Some(slots) = &mut self.slots {
            slots.roll_back(&mut held.state);
        }
    }

    /// Whether `held` has pages for `tokens` tokens, and `window_tokens` in layers with a window.
    pub fn covers(&self, held: &PageList, tokens: usize, window_tokens: usize) -> bool {
        let window = self.window.is_none() || held.window_pages.len() * self.page_len >= window_tokens;
        window && held.pages.len() * self.page_len >= tokens
    }

    /// Caches the contents of all full pages of a text, which has been computed, and releases
    /// what the tokens after them do not see.
    ///
    /// A page whose content exists already is replaced by the existing page, so that
    /// each content is kept once.
    pub fn remember<'a>(&mut self, held: &mut PageList, text: impl Into<Text<'a>>) {
        let text = text.into();
        for at in held.known..(text.len() / self.page_len).min(held.pages.len()) {
            let full = text.part(at * self.page_len..(at + 1) * self.page_len);
            let hash = hash(held.name, full);
            let name = match self.known.get(&hash).copied() {
                Some(name) if self.is_content(name, held.name, full) => name,
                Some(_) => break, // a hash collision: this sequence's pages are not cached
                None => self.name_content(hash, held.name, full),
            };
            keep(&mut self.full, &mut held.pages, at, name);
            if let Some(window) = &mut self.window
                && (held.released..held.window_pages.len()).contains(&at)
            {
                keep(&mut window.pool, &mut held.window_pages, at, name);
            }
            (held.known, held.name) = (at + 1, name);
        }
        self.slide(held, text.len());
    }

    /// Releases pages that neither the token at `position` nor any after it sees.
    fn slide(&mut self, held: &mut PageList, position: usize) {
        let first = self.first_seen(position).min(held.window_pages.len());
        let Some(window) = &mut self.window else { return };
        if first <= held.released {
            return;
        }
        for page in &mut held.window_pages.make_mut()[held.released..first] {
            window.pool.release(std::mem::take(page));
        }
        held.released = first;
    }

    /// The state slots of a sequence's next step, if there are recurrent layers.
    pub(crate) fn next_slots(&mut self, held: &mut PageList, step: NextStep) -> Option<StateSlots> {
        let slots = self.slots.as_mut()?;
        let next = slots.next(&mut held.state, step);
        if let Some((name, slot)) = slots.take_lost() {
            self.evict(name, CachePart::StateSlot, slot);
        }
        next
    }

    /// Takes a snapshot of the state after the first `computed` tokens if their last page,
    /// which is cached, ends there.
    pub(crate) fn take_snapshot(&mut self, held: &mut PageList, computed: usize) {
        let (Some(slots), Some(marks)) = (&mut self.slots, held.marks) else { return };
        if computed <= held.snapshot || computed != held.known * self.page_len {
            return;
        }
        let before = std::mem::replace(&mut held.snapshot, computed);
        let (stays, last_stays) = (marks.stays(computed, before), marks.last_stays(computed, before));
        let snapshot = Snapshot { name: held.name, position: computed, stays, last_stays };
        slots.snapshot(&mut held.state, snapshot);
    }

    /// Releases all of `held`.
    pub fn give_back(&mut self, held: &mut PageList) {
        let PageList { pages, window_pages, released, mut state, .. } = std::mem::take(held);
        if let Some(slots) = &mut self.slots {
            slots.release(&mut state);
        }
        // in reverse, so that a prefix stays cached longer than what follows it
        pages.iter().rev().for_each(|page| self.full.release(*page));
        if let Some(window) = &mut self.window {
            window_pages[released..].iter().rev().for_each(|page| window.pool.release(*page));
        }
    }

    /// Checks that every page and slot is held as often as it occurs in `held`, and free
    /// exactly if it does not occur.
    pub fn check<'a>(&self, held: impl IntoIterator<Item = &'a PageList>) -> Result<(), EngineError> {
        let broken = |text: String| Err(EngineError::Broken(text));
        let held: Vec<&PageList> = held.into_iter().collect();
        self.full.check("page", held.iter().flat_map(|held| held.pages.iter().copied()))?;
        let (contents, known) = (self.contents.len(), self.known.len());
        let kept = self.full.contents().filter(|name| self.contents.contains_key(name)).count();
        if (contents, known) != (kept, kept) || self.full.contents().count() != kept {
            return broken(format!("{contents} contents and {known} hashes of {kept} pages"));
        }
        if let Some(slots) = &self.slots {
            slots.check(held.iter().map(|held| &held.state))?;
            if let Some(name) = slots.contents().find(|name| !self.contents.contains_key(name)) {
                return broken(format!("a state slot has content {name}, which no page has"));
            }
        }
        let Some(window) = &self.window else { return Ok(()) };
        let of_window = held.iter().flat_map(|held| held.window_pages[held.released..].iter().copied());
        window.pool.check("window page", of_window)?;
        match window.pool.contents().find(|name| !self.contents.contains_key(name)) {
            Some(name) => broken(format!("a window page has content {name}, which no page has")),
            None => Ok(()),
        }
    }

    /// The first page of a layer with a window that the token at `position` sees; 0 without such layers.
    fn first_seen(&self, position: usize) -> usize {
        self.window.as_ref().map_or(0, |w| (position + 1).saturating_sub(w.tokens) / self.page_len)
    }

    fn name_content(&mut self, hash: u64, after: u64, text: Text<'_>) -> u64 {
        let after_key = match after {
            0 => self.disk.as_ref().map(|keys| keys.root(text.adapters)),
            after => self.contents.get(&after).and_then(|content| content.key),
        };
        let key = after_key.and_then(|after| self.key_after(after, text));
        let (adapters, tokens) = (text.adapters.clone(), text.tokens.into());
        self.names += 1;
        self.known.insert(hash, self.names);
        self.contents.insert(self.names, Content { hash, after, adapters, tokens, key, after_key });
        self.names
    }

    fn is_content(&self, name: u64, after: u64, text: Text<'_>) -> bool {
        let same =
            |c: &Content| c.after == after && *c.tokens == *text.tokens && c.adapters == *text.adapters;
        self.contents.get(&name).is_some_and(same)
    }

    /// Drops a content whose page is used for another.
    fn forget(&mut self, name: u64) {
        if let Some(content) = self.contents.remove(&name) {
            self.known.remove(&content.hash);
        }
        if let Some(window) = &mut self.window {
            window.pool.forget(name);
        }
        if let Some(slots) = &mut self.slots {
            slots.forget(name);
        }
    }
}

/// Gives the page at `at` its content, or replaces it by the page that has it.
fn keep(pool: &mut Pool, table: &mut PageTable, at: usize, content: u64) {
    let (own, page) = (table[at], pool.keep(table[at], content));
    if page != own {
        table.make_mut()[at] = page;
    }
}

pub(crate) use on_disk::{Evicted, Install};

/// Hash of a page's text after a content. The same in every run, so that tests are reproducible.
fn hash<'a>(after: u64, text: impl Into<Text<'a>>) -> u64 {
    let Text { tokens, adapters } = text.into();
    BuildHasherDefault::<DefaultHasher>::default().hash_one((after, tokens, adapters))
}

mod on_disk;
mod prefix;
mod tail;
#[cfg(test)]
mod tests;
