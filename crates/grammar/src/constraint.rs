//! A compiled grammar, and where one text stands in it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::Matcher;
use tern_engine::Rules;

use crate::error::first_line;

/// A grammar ready for use. Each text takes its own [`TextRules`].
pub struct Compiled {
    pub(crate) matcher: Matcher,
    /// The number of tokens.
    pub(crate) tokens: usize,
}

impl Compiled {
    /// The rules of a new text.
    pub fn rules(&self) -> TextRules {
        TextRules { matcher: self.matcher.deep_clone(), tokens: self.tokens }
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiled")
    }
}

/// Where one text stands in its grammar.
pub struct TextRules {
    matcher: Matcher,
    tokens: usize,
}

impl Rules for TextRules {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        let matcher = &mut self.matcher;
        let mask = guarded(|| matcher.compute_mask_or_eos().map_err(|error| error.to_string()))?;
        let mut words = mask.as_slice().to_vec();
        words.truncate(self.tokens.div_ceil(32));
        Ok(words)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        let matcher = &mut self.matcher;
        guarded(|| {
            matcher.consume_token(token).map_err(|error| error.to_string())?;
            Ok(matcher.is_stopped())
        })
    }
}

impl std::fmt::Debug for TextRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextRules")
    }
}

/// An error in one sentence, and no panic: the parser says that it may on inputs it did not foresee.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // after a panic the parser is in its error state, or is dropped with the error
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(format!("the text cannot go on by its grammar: {}", first_line(error))),
        Err(_) => Err("the text cannot go on by its grammar: the parser failed".into()),
    }
}
