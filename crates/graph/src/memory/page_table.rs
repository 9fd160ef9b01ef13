//! The KV pages of one sequence, in order.

use std::ops::Deref;
use std::sync::Arc;

/// Position `p` of the sequence lives in page `table[p / page_len]`. Clones share the list until one of them
/// changes, so that a step takes a sequence's pages without copying them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTable(Arc<Vec<u32>>);

impl PageTable {
    /// The list, to be changed; copied first if a clone shares it.
    pub fn make_mut(&mut self) -> &mut Vec<u32> {
        Arc::make_mut(&mut self.0)
    }
}

impl Deref for PageTable {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl From<Vec<u32>> for PageTable {
    fn from(pages: Vec<u32>) -> PageTable {
        PageTable(Arc::new(pages))
    }
}

impl FromIterator<u32> for PageTable {
    fn from_iter<I: IntoIterator<Item = u32>>(pages: I) -> PageTable {
        PageTable(Arc::new(pages.into_iter().collect()))
    }
}

impl<const N: usize> From<[u32; N]> for PageTable {
    fn from(pages: [u32; N]) -> PageTable {
        PageTable::from(pages.to_vec())
    }
}
