//! The tokens that may come next, promised before they are known.

use std::sync::{Arc, OnceLock};

/// One bit a token, 32 a word: a set bit may be chosen. Tokens past the last word may not.
///
/// Whoever makes the bits may still be at it when a step starts; the sampler waits for them, so that they are made
/// while the model computes. Clones are the same promise.
#[derive(Clone, Debug, Default)]
pub struct Mask(Arc<OnceLock<Result<Box<[u32]>, String>>>);

impl Mask {
    /// A promise that is not kept yet.
    pub fn pending() -> Mask {
        Mask::default()
    }

    /// A mask that allows these tokens of a vocabulary.
    pub fn allowing(tokens: impl IntoIterator<Item = u32>, vocab: usize) -> Mask {
        let mut words = vec![0; vocab.div_ceil(32)];
        for id in tokens {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        let mask = Mask::pending();
        mask.set(Ok(words));
        mask
    }

    /// Keeps the promise, or says why it cannot be kept. Only the first time counts.
    pub fn set(&self, words: Result<Vec<u32>, String>) {
        let _ = self.0.set(words.map(Vec::into_boxed_slice));
    }

    /// The bits, once they are there.
    pub fn wait(&self) -> Result<&[u32], &str> {
        match self.0.wait() {
            Ok(words) => Ok(words),
            Err(why) => Err(why),
        }
    }

    /// Takes every token that is not allowed out of the choice.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let words = self.wait().unwrap_or_default(); // a broken promise allows nothing
        for (i, x) in logits.iter_mut().enumerate() {
            if words.get(i / 32).is_none_or(|word| word >> (i % 32) & 1 == 0) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

/// The same promise.
impl PartialEq for Mask {
    fn eq(&self, other: &Mask) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
