//! The tokens that may come next, as a value that is set later.

use std::sync::{Arc, OnceLock};

/// One bit per token, 32 per word: a token with a set bit may be chosen. Tokens past the last word may not.
///
/// The bits are computed while the model runs, so a mask may still be pending when a step starts; the sampler
/// waits for it. Clones share one value.
#[derive(Clone, Debug, Default)]
pub struct Mask(Arc<OnceLock<Result<Box<[u32]>, String>>>);

impl Mask {
    /// A mask that is not set yet.
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

    /// Sets the bits, or why there are none. Only the first call has an effect.
    pub fn set(&self, words: Result<Vec<u32>, String>) {
        let _ = self.0.set(words.map(Vec::into_boxed_slice));
    }

    /// Waits for the bits.
    pub fn wait(&self) -> Result<&[u32], &str> {
        match self.0.wait() {
            Ok(words) => Ok(words),
            Err(why) => Err(why),
        }
    }

    /// Excludes every token that is not allowed.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let words = self.wait().unwrap_or_default(); // an error allows nothing
        for (i, x) in logits.iter_mut().enumerate() {
            if words.get(i / 32).is_none_or(|word| word >> (i % 32) & 1 == 0) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
}

/// Equal if they share one value.
impl PartialEq for Mask {
    fn eq(&self, other: &Mask) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
