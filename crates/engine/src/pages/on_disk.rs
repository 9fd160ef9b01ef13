//! Contents on disk: which leave memory, which would make a prefix longer, and how they come back.
//!
//! Only whole pages go to disk. The end of a text (`tail.rs`) does not: what it saves is less than a page.

use tern_graph::{CachePart, Place};

use super::{Pages, Text, hash};
use crate::disk::{FileId, Item, Key, Keys};

/// A content that leaves memory: its bytes are at this place until the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) place: Place,
    pub(crate) item: Item,
}

/// Where what was read from disk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Install {
    /// Into this page or slot.
    Into(Place),
    /// Nowhere: it is in memory already.
    Present,
    /// Nowhere: there is no room, or what comes before it has left memory again.
    Impossible,
}

impl Pages {
    /// Gives contents keys, by which they are on disk.
    pub(crate) fn use_disk(&mut self, keys: Keys) {
        self.disk = Some(keys);
    }

    /// Keeps the hash of an image's rows.
    pub(crate) fn know_image(&mut self, number: u32, rows: Key) {
        if let Some(keys) = &mut self.disk {
            keys.know_image(number, rows);
        }
    }

    /// What has left memory since the last call.
    pub(crate) fn take_evicted(&mut self) -> Vec<Evicted> {
        std::mem::take(&mut self.evicted)
    }

    /// The key of a content after the one with this key, if it is a whole page.
    pub(super) fn key_after(&self, after: Key, text: Text<'_>) -> Option<Key> {
        let keys = self.disk.as_ref().filter(|_| text.len() == self.page_len)?;
        Some(after.then(&keys.words(text.tokens)?))
    }

    /// A part of a content as a file; `at` is the number of its page, if it is known.
    fn item(&self, name: u64, part: CachePart, at: usize) -> Option<Item> {
        let (keys, content) = (self.disk.as_ref()?, self.contents.get(&name)?);
        let key = content.key?;
        Some(Item {
            id: FileId { key, part },
            after: content.after_key?,
            words: keys.words(&content.tokens)?,
            at,
        })
    }

    /// Notes that a part of a content leaves memory with the next step.
    pub(super) fn evict(&mut self, name: u64, part: CachePart, number: u32) {
        if let Some(item) = self.item(name, part, 0) {
            self.evicted.push(Evicted { place: Place { part, number }, item });
        }
    }

    /// The same of all parts of a content.
    pub(super) fn evict_all(&mut self, name: u64, page: u32) {
        if self.disk.is_none() {
            return;
        }
        self.evict(name, CachePart::Page, page);
        if let Some(page) = self.window.as_ref().and_then(|window| window.pool.find(name)) {
            self.evict(name, CachePart::WindowPage, page);
        }
        if let Some(slot) = self.slots.as_ref().and_then(|slots| slots.find(name)) {
            self.evict(name, CachePart::StateSlot, slot);
        }
    }

    /// All that is cached in memory, the most recently used first: pages, then what belongs to them.
    pub(crate) fn all_cached(&self) -> Vec<Evicted> {
        let mut pages: Vec<(u64, u64, u32)> = self.full.by_release().collect();
        pages.sort_unstable_by_key(|(released, ..)| std::cmp::Reverse(*released));
        let mut all = vec![];
        for (at, (_, name, page)) in pages.into_iter().enumerate() {
            let window = self.window.as_ref().and_then(|window| window.pool.find(name));
            let slot = self.slots.as_ref().and_then(|slots| slots.find(name));
            let parts = [Some(page), window, slot].into_iter().zip(CachePart::ALL);
            for (number, part) in parts.filter_map(|(number, part)| Some((number?, part))) {
                let item = self.item(name, part, at);
                all.extend(item.map(|item| Evicted { place: Place { part, number }, item }));
            }
        }
        all
    }

    /// The files that would make the cached prefix of a text the longest, in the order in which they are
    /// needed; `has` says which there are.
    pub(crate) fn missing(&self, text: Text<'_>, has: &dyn Fn(&FileId) -> bool) -> Vec<Item> {
        let Some(keys) = &self.disk else { return vec![] };
        let names = self.names(text);
        let mut pages: Vec<Item> = vec![]; // of the whole pages in memory or on disk
        let mut after = keys.root(text.adapters);
        for full in text.part(0..text.len().saturating_sub(1)).tokens.chunks_exact(self.page_len) {
            let Some(words) = keys.words(full) else { break };
            let item = Item::new(CachePart::Page, pages.len(), after, words);
            if pages.len() >= names.len() && !has(&item.id) {
                break;
            }
            after = item.id.key;
            pages.push(item);
        }
        let found = self.find(text).tokens(self.page_len);
        let part = |at: usize, part: CachePart| {
            let id = FileId { part, ..pages[at].id };
            Item { id, ..pages[at].clone() }
        };
        let name = |at: usize| names.get(at).copied();
        let lacks_window = |at: &usize| {
            let pool = self.window.as_ref().map(|window| &window.pool);
            pool.is_some_and(|pool| name(*at).is_none_or(|name| pool.find(name).is_none()))
        };
        let lacks_state =
            |at: usize| self.slots.as_ref().is_some_and(|slots| name(at).is_none_or(|name| !slots.has(name)));
        let on_disk = |at: usize, part: CachePart| has(&FileId { part, ..pages[at].id });
        let first = |end: usize| self.first_seen(end * self.page_len).min(end);
        let longer = (1..=pages.len()).rev().take_while(|end| end * self.page_len > found);
        let Some(end) = longer.into_iter().find(|end| {
            let last = *end - 1;
            (!lacks_state(last) || on_disk(last, CachePart::StateSlot))
                && (first(*end)..*end).filter(lacks_window).all(|at| on_disk(at, CachePart::WindowPage))
        }) else {
            return vec![];
        };
        let windows = (first(end)..end).filter(lacks_window).map(|at| part(at, CachePart::WindowPage));
        let state = Some(end - 1).filter(|at| lacks_state(*at)).map(|at| part(at, CachePart::StateSlot));
        let missing: Vec<Item> =
            (names.len()..end).map(|at| pages[at].clone()).chain(windows).chain(state).collect();
        let count = |part| missing.iter().filter(|item| item.id.part == part).count();
        let window_free = self.window.as_ref().map_or(0, |window| window.pool.free());
        // what comes back must not take the place of what it continues
        let fits = count(CachePart::Page) + self.free_of(&names) <= self.full.free()
            && count(CachePart::WindowPage) <= window_free;
        if fits { missing } else { vec![] }
    }

    /// How many of these contents are in pages that are free.
    fn free_of(&self, names: &[u64]) -> usize {
        let pages = names.iter().filter_map(|name| self.full.find(*name));
        pages.filter(|page| !self.full.is_held(*page)).count()
    }

    /// The contents of a text's whole pages that are in memory, from the first one on.
    fn names(&self, text: Text<'_>) -> Vec<u64> {
        let names = text.tokens.chunks_exact(self.page_len).scan(0, |after, full| {
            let full = Text { tokens: full, ..text };
            let name = *self.known.get(&hash(*after, full))?;
            let found = self.is_content(name, *after, full);
            *after = name;
            found.then_some(name)
        });
        names.collect()
    }

    /// A place for what was read from disk, which is cached from now on and held by no sequence.
    pub(crate) fn install(&mut self, text: Text<'_>, item: &Item) -> Install {
        let end = (item.at + 1) * self.page_len;
        if end >= text.len() {
            return Install::Impossible;
        }
        let names = self.names(text.part(0..end));
        let (whole, part) = (names.len() > item.at, item.id.part);
        let (known, pool) = match part {
            CachePart::Page => (whole, Some(&mut self.full)),
            CachePart::WindowPage => {
                let pool = self.window.as_mut().map(|window| &mut window.pool);
                (whole && pool.as_ref().is_some_and(|pool| pool.find(names[item.at]).is_some()), pool)
            }
            CachePart::StateSlot => {
                let pool = self.slots.as_mut().map(|slots| slots.pool_mut());
                (whole && pool.as_ref().is_some_and(|pool| pool.find(names[item.at]).is_some()), pool)
            }
        };
        if known {
            return Install::Present;
        }
        let continues = if part == CachePart::Page { names.len() == item.at } else { whole };
        let Some(taken) = pool.filter(|_| continues).and_then(|pool| pool.take()) else {
            return Install::Impossible;
        };
        let cannibal = taken.lost.is_some_and(|lost| part == CachePart::Page && names.contains(&lost));
        if let Some(lost) = taken.lost {
            match part {
                CachePart::Page => {
                    self.evict_all(lost, taken.page);
                    self.forget(lost);
                }
                _ => self.evict(lost, part, taken.page),
            }
        }
        let name = match part {
            CachePart::Page if cannibal => None,
            CachePart::Page => {
                let (after, full) = (names.last().copied().unwrap_or(0), text.part(end - self.page_len..end));
                let hash = hash(after, full);
                let free = !self.known.contains_key(&hash); // or else a hash collision
                free.then(|| self.name_content(hash, after, full))
            }
            _ => names.last().copied(),
        };
        let pool = match part {
            CachePart::Page => Some(&mut self.full),
            CachePart::WindowPage => self.window.as_mut().map(|window| &mut window.pool),
            CachePart::StateSlot => self.slots.as_mut().map(|slots| slots.pool_mut()),
        };
        let Some(pool) = pool else { return Install::Impossible };
        if let Some(name) = name {
            pool.keep(taken.page, name);
        }
        pool.release(taken.page);
        match name {
            Some(_) => Install::Into(Place { part, number: taken.page }),
            None => Install::Impossible,
        }
    }

    /// Marks the cached prefix of a text as just used, its beginning last.
    pub(crate) fn touch(&mut self, text: Text<'_>) {
        for name in self.names(text).into_iter().rev() {
            if let Some(page) = self.full.find(name) {
                self.full.hold(page);
                self.full.release(page);
            }
            if let Some(window) = &mut self.window
                && let Some(page) = window.pool.find(name)
            {
                window.pool.hold(page);
                window.pool.release(page);
            }
        }
    }
}
