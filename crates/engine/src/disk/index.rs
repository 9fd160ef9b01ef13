//! Which files there are, and which of them are removed first.

use std::collections::{BTreeMap, HashMap};

use super::DiskUse;
use super::folder::Found;
use super::key::FileId;

/// Files at most: folders with more become slow.
const MOST_FILES: usize = 1 << 17;

/// The files of a folder, by when they were used.
pub(crate) struct Index {
    files: HashMap<FileId, Entry>,
    /// The least recently used first.
    order: BTreeMap<u64, FileId>,
    bytes: u64,
    most_bytes: u64,
    /// Counts uses.
    uses: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    bytes: u64,
    used: u64,
}

impl Index {
    pub(super) fn new(mut files: Vec<Found>, most_bytes: u64) -> Index {
        files.sort_by_key(|file| (file.used, file.id));
        let mut index =
            Index { files: HashMap::new(), order: BTreeMap::new(), bytes: 0, most_bytes, uses: 0 };
        files.into_iter().for_each(|file| index.add(file.id, file.bytes));
        index
    }

    pub(crate) fn has(&self, id: &FileId) -> bool {
        self.files.contains_key(id)
    }

    pub(crate) fn usage(&self) -> DiskUse {
        DiskUse { files: self.files.len(), bytes: self.bytes }
    }

    /// Bytes of all files at most.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// Marks a file as used; false if there is none.
    pub(crate) fn touch(&mut self, id: &FileId) -> bool {
        self.uses += 1;
        let Some(entry) = self.files.get_mut(id) else { return false };
        self.order.remove(&std::mem::replace(&mut entry.used, self.uses));
        self.order.insert(self.uses, *id);
        true
    }

    pub(super) fn add(&mut self, id: FileId, bytes: u64) {
        self.remove(&id);
        self.uses += 1;
        self.files.insert(id, Entry { bytes, used: self.uses });
        self.order.insert(self.uses, id);
        self.bytes += bytes;
    }

    pub(super) fn remove(&mut self, id: &FileId) {
        if let Some(entry) = self.files.remove(id) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    /// The file to remove before one of this many bytes is added; `None` if there is room for it.
    pub(super) fn excess(&self, bytes: u64) -> Option<FileId> {
        let full = self.bytes.saturating_add(bytes) > self.most_bytes || self.files.len() >= MOST_FILES;
        full.then(|| self.order.values().next().copied()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use tern_graph::CachePart;

    use super::*;
    use crate::disk::Key;

    #[test]
    fn the_least_recently_used_files_go_first_and_bytes_are_counted() {
        let id = |n: u8| FileId { key: Key([n; 32]), part: CachePart::Page };
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let found = |n, bytes, used| Found { id: id(n), bytes, used: at(used) };
        let mut index = Index::new(vec![found(1, 10, 30), found(2, 20, 10), found(3, 30, 20)], 100);
        assert_eq!(index.usage(), DiskUse { files: 3, bytes: 60 });
        assert_eq!(index.excess(40), None);
        assert_eq!(index.excess(41), Some(id(2)));
        assert!(index.touch(&id(2)) && !index.touch(&id(9)));
        assert_eq!(index.excess(41), Some(id(3)));
        index.remove(&id(3));
        index.add(id(1), 15); // written again
        assert_eq!(index.usage(), DiskUse { files: 2, bytes: 35 });
        assert_eq!(index.excess(66), Some(id(2)));
        for n in [1, 2] {
            index.remove(&id(n));
        }
        assert_eq!(index.excess(101), None, "nothing is left to remove");
    }
}
