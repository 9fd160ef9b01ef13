//! The pages that one kind of page table names, or the slots of states: which are free, in which order they
//! are used again, and which content each has.

use std::collections::{BTreeSet, HashMap};

use crate::EngineError;

/// Pages of one size. Contents are known by name only; a free page keeps its content
/// until it is used for another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    pages: Vec<Page>,
    /// Free pages, by when they were released; those without a content come first.
    free: BTreeSet<(u64, u32)>,
    /// Pages by the name of their content.
    by_content: HashMap<u64, u32>,
    /// Free pages with a content.
    cached: usize,
    /// Numbers releases.
    releases: u64,
}

#[derive(Clone, Debug, Default)]
struct Page {
    holders: u32,
    /// When it was released, if it is free.
    released: u64,
    content: Option<u64>,
}

/// A page for a new use, and the content that it had.
pub(crate) struct Taken {
    pub(crate) page: u32,
    pub(crate) lost: Option<u64>,
}

impl Pool {
    pub(crate) fn new(total: usize) -> Pool {
        let free = (0..total as u32).map(|page| (0, page)).collect();
        Pool { pages: vec![Page::default(); total], free, ..Pool::default() }
    }

    /// Free pages, with or without a content.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Free pages with a content.
    pub(crate) fn cached(&self) -> usize {
        self.cached
    }

    pub(crate) fn total(&self) -> usize {
        self.pages.len()
    }

    /// The page with this content.
    pub(crate) fn find(&self, content: u64) -> Option<u32> {
        self.by_content.get(&content).copied()
    }

    pub(crate) fn is_held(&self, page: u32) -> bool {
        self.holders(page) > 0
    }

    /// How often a page is held.
    pub(crate) fn holders(&self, page: u32) -> usize {
        self.pages[page as usize].holders as usize
    }

    pub(crate) fn has_content(&self, page: u32) -> bool {
        self.pages[page as usize].content.is_some()
    }

    /// Holds the page that was released first, without its content.
    pub(crate) fn take(&mut self) -> Option<Taken> {
        let &(_, page) = self.free.first()?;
        self.hold(page);
        let lost = self.pages[page as usize].content.take();
        if let Some(content) = lost {
            self.by_content.remove(&content);
        }
        Some(Taken { page, lost })
    }

    pub(crate) fn hold(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        if page.holders == 0 {
            self.free.remove(&(page.released, number));
            self.cached -= usize::from(page.content.is_some());
        }
        page.holders += 1;
    }

    pub(crate) fn release(&mut self, number: u32) {
        self.releases += 1;
        let page = &mut self.pages[number as usize];
        page.holders -= 1;
        if page.holders == 0 {
            page.released = if page.content.is_some() { self.releases } else { 0 };
            self.cached += usize::from(page.content.is_some());
            self.free.insert((page.released, number));
        }
    }

    /// Gives a held page its content, or replaces it by the page that has this content already, so that each
    /// content is kept once. Returns the page to use.
    pub(crate) fn keep(&mut self, own: u32, content: u64) -> u32 {
        match self.find(content) {
            Some(page) if page == own => own,
            Some(page) => {
                self.hold(page);
                self.release(own);
                page
            }
            None => {
                self.pages[own as usize].content = Some(content);
                self.by_content.insert(content, own);
                own
            }
        }
    }

    /// Drops a content, if a page has it.
    pub(crate) fn forget(&mut self, content: u64) {
        let Some(number) = self.by_content.remove(&content) else { return };
        let page = &mut self.pages[number as usize];
        page.content = None;
        if page.holders == 0 {
            self.free.remove(&(page.released, number));
            self.cached -= 1;
            page.released = 0;
            self.free.insert((0, number));
        }
    }

    /// Contents of all pages.
    pub(crate) fn contents(&self) -> impl Iterator<Item = u64> {
        self.by_content.keys().copied()
    }

    /// Contents of free pages: when they were released, their name and their page.
    pub(crate) fn by_release(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        let free = self.free.iter().rev();
        free.filter_map(|&(released, page)| Some((released, self.pages[page as usize].content?, page)))
    }

    /// Checks that every page is held as often as it occurs in `held`, and free exactly if it does not occur;
    /// `name` is that of a page in errors.
    pub(crate) fn check(&self, name: &str, held: impl Iterator<Item = u32>) -> Result<(), EngineError> {
        let broken = |text: String| Err(EngineError::Broken(text));
        let mut times = vec![0u32; self.pages.len()];
        for page in held {
            match times.get_mut(page as usize) {
                Some(n) => *n += 1,
                None => return broken(format!("{name} {page} of {} does not exist", self.pages.len())),
            }
        }
        for (i, (page, times)) in self.pages.iter().zip(times).enumerate() {
            if page.holders != times {
                return broken(format!(
                    "{name} {i} is held {times} times, and {} were counted",
                    page.holders
                ));
            }
            let free = self.free.contains(&(page.released, i as u32));
            if free != (times == 0) {
                let is = if free { "free" } else { "not free" };
                return broken(format!("{name} {i} is held {times} times and {is}"));
            }
            if page.content.is_some_and(|content| self.find(content) != Some(i as u32)) {
                return broken(format!("{name} {i} has a content that is not in the index"));
            }
        }
        let free = self.pages.iter().filter(|p| p.holders == 0);
        let cached = free.clone().filter(|p| p.content.is_some()).count();
        let contents = self.pages.iter().filter(|p| p.content.is_some()).count();
        if (free.count(), cached, contents) != (self.free.len(), self.cached, self.by_content.len()) {
            let (free, known) = (self.free.len(), self.by_content.len());
            return broken(format!(
                "{free} of {name} are free, {cached} cached and {known} known, of {contents}"
            ));
        }
        Ok(())
    }
}
