//! The tokens of a sequence and how often each was generated: what penalties look at.

use std::sync::Arc;

/// Counts by token. Clones share the counts until one of them changes; none needs no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(Option<Arc<Vec<(u32, u32)>>>);

impl Seen {
    /// The tokens of a prompt, none of them generated.
    pub fn new(prompt: &[u32]) -> Seen {
        let mut ids = prompt.to_vec();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(|id| (id, 0)).collect::<Vec<_>>().into()
    }

    /// Adds a token that was not generated.
    pub fn see(&mut self, id: u32) {
        let counts = Arc::make_mut(self.0.get_or_insert_default());
        if let Err(at) = counts.binary_search_by_key(&id, |(id, _)| *id) {
            counts.insert(at, (id, 0));
        }
    }

    /// Counts one more generated token.
    pub fn add(&mut self, id: u32) {
        let counts = Arc::make_mut(self.0.get_or_insert_default());
        match counts.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => counts[at].1 += 1,
            Err(at) => counts.insert(at, (id, 1)),
        }
    }

    /// Tokens and how often each was generated, ordered by token.
    pub fn counts(&self) -> &[(u32, u32)] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

/// From counts in any order.
impl From<Vec<(u32, u32)>> for Seen {
    fn from(mut counts: Vec<(u32, u32)>) -> Seen {
        counts.sort_unstable();
        Seen((!counts.is_empty()).then(|| Arc::new(counts)))
    }
}
