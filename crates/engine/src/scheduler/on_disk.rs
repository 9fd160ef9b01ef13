//! The cache on disk, as the scheduler sees it: waiting sequences whose prefix is longer there do not start
//! before it is in memory.

use tern_graph::CachePart;

use super::Scheduler;
use crate::RequestId;
use crate::disk::{FileId, Item, Key, Keys};
use crate::pages::{Evicted, Install};
use crate::sequence::{Lookup, Sequence};

/// How far in the queue prefixes are looked up: what starts later would have left memory again.
const NEXT: usize = 8;

impl Scheduler {
    /// Uses a cache on disk, in which contents have keys that begin with these.
    pub(crate) fn use_disk(&mut self, keys: Keys) {
        self.pages.use_disk(keys);
    }

    /// Keeps the hash of an image's rows.
    pub(crate) fn know_image(&mut self, number: u32, rows: Key) {
        self.pages.know_image(number, rows);
    }

    /// What has left memory since the last call; its bytes are in place until the next step is submitted.
    pub(crate) fn take_evicted(&mut self) -> Vec<Evicted> {
        self.pages.take_evicted()
    }

    /// All that is cached, the most recently used first.
    pub(crate) fn all_cached(&self) -> Vec<Evicted> {
        self.pages.all_cached()
    }

    /// The next waiting sequence whose prefix is longer on disk, and the files that it needs. It does not
    /// start before [`Scheduler::restored`].
    pub(crate) fn look_up(&mut self, has: &dyn Fn(&FileId) -> bool) -> Option<(RequestId, Vec<Item>)> {
        for sequence in self.waiting.iter_mut().take(NEXT) {
            if sequence.lookup != Lookup::Pending {
                continue;
            }
            sequence.lookup = Lookup::Done;
            let Some(text) = sequence.cached_text() else { continue };
            let missing = self.pages.missing(text, has);
            if !missing.is_empty() {
                sequence.lookup = Lookup::Restoring;
                return Some((sequence.id, missing));
            }
        }
        None
    }

    /// A place for what was read from disk for a sequence; `None` if the sequence does not wait any more.
    pub(crate) fn install(&mut self, id: RequestId, item: &Item) -> Option<Install> {
        let sequence = self.waiting.iter().find(|sequence| sequence.id == id)?;
        let install = self.pages.install(sequence.cached_text()?, item);
        if matches!(install, Install::Into(_)) && item.id.part == CachePart::Page {
            self.done.disk_hit_tokens += self.capacity.page_len as u64;
        }
        self.done.disk_reads += u64::from(matches!(install, Install::Into(_)));
        Some(install)
    }

    /// Lets a sequence start: its prefix is in memory, or will be computed.
    pub(crate) fn restored(&mut self, id: RequestId) {
        let Some(sequence) = self.waiting.iter_mut().find(|sequence| sequence.id == id) else { return };
        sequence.lookup = Lookup::Done;
        if let Some(text) = sequence.cached_text() {
            self.pages.touch(text);
        }
    }

    /// Whether a sequence runs or may start.
    pub(crate) fn has_work(&self) -> bool {
        !self.running.is_empty() || self.waiting.iter().any(|sequence| !sequence.is_restoring())
    }
}

impl Sequence {
    /// Whether it waits for the disk.
    pub(crate) fn is_restoring(&self) -> bool {
        self.lookup == Lookup::Restoring
    }
}
