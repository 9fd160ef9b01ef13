//! A text that must follow rules: what says which tokens may come next.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tern_graph::Mask;

/// Follows a text token by token and knows what may come next.
///
/// `mask` runs on a thread of its own while the model computes; `accept` runs between two steps and should be quick.
pub trait Rules: Send {
    /// The tokens that may come next, one bit each, 32 a word; end tokens among them where the text may end.
    fn mask(&mut self) -> Result<Vec<u32>, String>;

    /// Takes the next token; true if the text is complete and nothing can follow.
    fn accept(&mut self, token: u32) -> Result<bool, String>;
}

/// The rules of one request. They have a state, so every request needs its own.
#[derive(Clone)]
pub struct Guide(Arc<Mutex<dyn Rules>>);

impl Guide {
    /// A text under these rules.
    pub fn new(rules: impl Rules + 'static) -> Guide {
        Guide(Arc::new(Mutex::new(rules)))
    }

    /// Keeps the promise of the next mask.
    pub fn make(&self, mask: &Mask) {
        mask.keep(self.0.lock().unwrap_or_else(PoisonError::into_inner).mask());
    }

    pub(crate) fn accept(&self, token: u32) -> Result<bool, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).accept(token)
    }
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guide")
    }
}

/// The same rules in the same state.
impl PartialEq for Guide {
    fn eq(&self, other: &Guide) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
