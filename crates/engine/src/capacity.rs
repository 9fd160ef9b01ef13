//! What a runner has room for: the KV pages it reserved and the largest step it was compiled for.

use crate::EngineError;

/// Sizes of a runner. The runner owns these numbers; engine and scheduler read them from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// KV pages in total.
    pub pages: usize,
    /// Tokens per page.
    pub page_len: usize,
    /// Tokens in a step.
    pub max_tokens: usize,
    /// Tokens sampled in a step; at least one per sequence that may run at the same time.
    pub max_outputs: usize,
}

impl Capacity {
    /// Refuses sizes with which nothing could run.
    pub fn check(&self) -> Result<(), EngineError> {
        let sizes = [
            ("pages", self.pages),
            ("page_len", self.page_len),
            ("max_tokens", self.max_tokens),
            ("max_outputs", self.max_outputs),
        ];
        if let Some((name, got)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(EngineError::range(name, "1 or more", got));
        }
        if self.pages > u32::MAX as usize {
            return Err(EngineError::range("pages", format!("at most {}", u32::MAX), self.pages));
        }
        Ok(())
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_len)
    }

    /// Tokens that all pages hold together.
    pub fn kv_tokens(&self) -> usize {
        self.pages.saturating_mul(self.page_len)
    }
}
