//! How much fits: what an engine may run at once, and which requests it can ever serve.

use crate::{EngineError, Request};

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that run at once; at most `max_batch_tokens`, so that each can move in every step.
    pub max_seqs: usize,
    /// Tokens in a step.
    pub max_batch_tokens: usize,
    /// Tokens in a sequence, prompt and generated together.
    pub max_context: usize,
    /// KV pages in all.
    pub pages: usize,
    /// Tokens a page.
    pub page_len: usize,
    /// Requests that may wait when `max_seqs` run.
    pub max_waiting: usize,
    /// Steps are made about this long where prompts would make them longer, so that nobody waits for long;
    /// 0 lets them have `max_batch_tokens`.
    pub step_millis: usize,
}

impl Limits {
    /// Refuses limits under which nothing could run.
    pub fn check(&self) -> Result<(), EngineError> {
        let sizes = [
            ("max_seqs", self.max_seqs),
            ("max_context", self.max_context),
            ("pages", self.pages),
            ("page_len", self.page_len),
        ];
        if let Some((name, got)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(EngineError::range(name, "1 or more", got));
        }
        if self.pages > u32::MAX as usize {
            return Err(EngineError::range("pages", format!("at most {}", u32::MAX), self.pages));
        }
        if self.max_batch_tokens < self.max_seqs {
            let want = format!("max_seqs ({}) or more", self.max_seqs);
            return Err(EngineError::range("max_batch_tokens", want, self.max_batch_tokens));
        }
        Ok(())
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_len)
    }

    /// Refuses a request that can never be served, whatever else runs.
    pub fn admit(&self, request: &Request) -> Result<(), EngineError> {
        let (prompt, max_tokens) = (request.prompt.len(), request.max_tokens);
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if max_tokens == 0 {
            return Err(EngineError::range("max_tokens", "1 or more", max_tokens));
        }
        request.sampling.check()?;
        let total = prompt.saturating_add(max_tokens);
        if total > self.max_context {
            return Err(EngineError::Context { prompt, max_tokens, max_context: self.max_context });
        }
        let fed = if request.pooling.is_some() { prompt } else { total - 1 }; // the last token is never fed back
        let need = self.pages_for(fed);
        if need > self.pages {
            return Err(EngineError::Pages { need, page_len: self.page_len, pages: self.pages });
        }
        Ok(())
    }

    /// Refuses one more request when as many as may run and wait are here.
    pub(crate) fn queue(&self, running: usize, waiting: usize) -> Result<(), EngineError> {
        let Limits { max_seqs, max_waiting, .. } = *self;
        // a free seat counts as room to wait: whoever comes takes it in the next step
        if running + waiting >= max_seqs.saturating_add(max_waiting) {
            return Err(EngineError::QueueFull { running, waiting, max_seqs, max_waiting });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_seqs: 2,
        max_batch_tokens: 8,
        max_context: 32,
        pages: 3,
        page_len: 4,
        max_waiting: 1,
        step_millis: 0,
    };

    fn words(result: Result<(), EngineError>) -> String {
        result.map_or_else(|e| e.to_string(), |()| "ok".into())
    }

    #[test]
    fn limits_that_run_nothing_are_refused() {
        for (limits, want) in [
            (LIMITS, "ok"),
            (Limits { page_len: 0, ..LIMITS }, "page_len: want 1 or more, got 0"),
            (Limits { max_seqs: 9, ..LIMITS }, "max_batch_tokens: want max_seqs (9) or more, got 8"),
        ] {
            assert_eq!(words(limits.check()), want);
        }
    }

    #[test]
    fn a_request_that_can_never_fit_is_refused_with_both_numbers() {
        for (prompt, max_tokens, want) in [
            (1, 1, "ok"),
            (0, 1, "the prompt is empty"),
            (1, 0, "max_tokens: want 1 or more, got 0"),
            (12, 1, "ok"), // twelve tokens fed: three full pages
            (12, 2, "the request needs 4 pages of 4 tokens, there are 3"),
            (30, 3, "30 prompt tokens and 3 to generate do not fit the context of 32"),
            (
                2,
                usize::MAX,
                "2 prompt tokens and 18446744073709551615 to generate do not fit the context of 32",
            ),
        ] {
            assert_eq!(words(LIMITS.admit(&Request::new(vec![0; prompt], max_tokens))), want);
        }
    }
}
