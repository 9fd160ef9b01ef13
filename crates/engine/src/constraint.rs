//! Constraints: which tokens may come next in a generated text.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

    /// The masks of now and after each of `drafts`, up to the first that is not allowed or completes the
    /// text. The text does not advance.
    fn look_ahead(&mut self, _drafts: &[u32]) -> Vec<Result<Vec<u32>, String>> {
        vec![self.mask()]
    }

    /// Whether [`Constraint::look_ahead`] has more than the mask of now: tokens are drafted only then.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Tokens that are likely to come next because little else is allowed; none if that is not known.
    fn forced(&mut self) -> Vec<u32> {
        vec![]
    }
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

    /// Computes the next mask, and those after each of `drafts`. A mask after a draft that is not allowed
    /// allows nothing.
    pub fn make(&self, masks: &[Mask], drafts: &[u32]) {
        let mut made =
            if drafts.is_empty() { vec![self.lock().mask()] } else { self.lock().look_ahead(drafts) };
        made.resize_with(masks.len(), || Ok(vec![]));
        masks.iter().zip(made).for_each(|(mask, made)| mask.set(made));
    }

    pub(crate) fn accept(&self, token: u32) -> Result<bool, String> {
        self.lock().accept(token)
    }

    pub(crate) fn looks_ahead(&self) -> bool {
        self.lock().looks_ahead()
    }

    pub(crate) fn forced(&self) -> Vec<u32> {
        self.lock().forced()
    }

    fn lock(&self) -> MutexGuard<'_, dyn Constraint + 'static> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
