//! Constraints: which tokens may come next in a generated text.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tern_graph::Mask;

/// Follows a text token by token and decides what may come next.
///
/// `mask` runs on a separate thread while the model computes; `accept` runs between two
/// steps and should be quick.
pub trait Constraint: Send {
    /// The tokens that may come next, one bit per token, 32 per word; end tokens are
    /// included if the text may end.
    fn mask(&mut self) -> Result<Vec<u32>, String>;

    /// Advances by the next token; true if the text is complete and nothing can follow.
    fn accept(&mut self, token: u32) -> Result<bool, String>;
}

/// The constraint of one request, shared with the thread that computes masks. It has a state, so every
/// request needs its own.
#[derive(Clone)]
pub struct SharedConstraint(Arc<Mutex<dyn Constraint>>);

impl SharedConstraint {
    /// Shares a constraint.
    pub fn new(constraint: impl Constraint + 'static) -> SharedConstraint {
        SharedConstraint(Arc::new(Mutex::new(constraint)))
    }

    /// Computes the next mask.
    pub fn make(&self, mask: &Mask) {
        mask.set(self.0.lock().unwrap_or_else(PoisonError::into_inner).mask());
    }

    pub(crate) fn accept(&self, token: u32) -> Result<bool, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).accept(token)
    }
}

impl fmt::Debug for SharedConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedConstraint")
    }
}

/// Equal if they share one state.
impl PartialEq for SharedConstraint {
    fn eq(&self, other: &SharedConstraint) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
