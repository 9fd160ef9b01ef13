//! Rules on tokens besides a grammar: tokens that are given, a minimum length, words that must not occur, and
//! how long the model may reason.

use std::sync::Arc;

use tern_engine::{Constraint, SharedConstraint};

use crate::Model;
use crate::constraint::CompiledConstraint;
use crate::thinking_budget::{Next, Thinking, ThinkingBudget};
use crate::token_mask::{self, clear, set};

/// Rules on the tokens of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenRules {
    /// The text begins with these. Their log-probabilities are reported like those of any other
    /// token, which scores them.
    pub forced: Arc<[u32]>,
    /// End tokens are excluded until this many tokens follow the forced ones.
    pub min_tokens: usize,
    /// Sequences of tokens that do not occur after the forced ones.
    pub bad_words: Arc<[Vec<u32>]>,
    /// How long the model may reason.
    pub thinking: Option<Arc<ThinkingBudget>>,
}

impl TokenRules {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        let TokenRules { forced, min_tokens, bad_words, thinking } = self;
        forced.is_empty() && *min_tokens == 0 && bad_words.is_empty() && thinking.is_none()
    }
}

impl Model {
    /// The state of one more text that follows the rules and a compiled constraint;
    /// none if there are neither.
    pub fn constrained(
        &self,
        rules: &TokenRules,
        constraint: Option<&CompiledConstraint>,
    ) -> Option<SharedConstraint> {
        if rules.is_empty() {
            return constraint.map(CompiledConstraint::shared);
        }
        Some(SharedConstraint::new(Ruled {
            rules: rules.clone(),
            thinking: rules.thinking.as_ref().map(Thinking::new),
            inner: constraint.map(CompiledConstraint::boxed),
            end_tokens: Arc::clone(self.end_tokens()),
            vocab: self.tokenizer().vocab_size(),
            forced: 0,
            text: vec![],
        }))
    }
}

/// The state of one text.
struct Ruled {
    rules: TokenRules,
    thinking: Option<Thinking>,
    inner: Option<Box<dyn Constraint>>,
    end_tokens: Arc<[u32]>,
    vocab: usize,
    /// Forced tokens so far.
    forced: usize,
    /// The tokens after them.
    text: Vec<u32>,
}

impl Ruled {
    /// Excludes what may not follow the text.
    fn restrict(&self, mask: &mut [u32]) {
        if self.text.len() < self.rules.min_tokens {
            self.end_tokens.iter().for_each(|&token| clear(mask, token));
        }
        for word in self.rules.bad_words.iter() {
            if let Some((&last, before)) = word.split_last()
                && self.text.ends_with(before)
            {
                clear(mask, last);
            }
        }
        match self.thinking.as_ref().map_or(Next::Anything, Thinking::next) {
            Next::Anything => {}
            Next::AllBut(token) => clear(mask, token),
            Next::Only(token) => {
                mask.fill(0);
                set(mask, token);
            }
        }
    }

    fn take(&mut self, token: u32) {
        self.text.push(token);
        if let Some(thinking) = &mut self.thinking {
            thinking.accept(token);
        }
    }
}

impl Constraint for Ruled {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        if let Some(&token) = self.rules.forced.get(self.forced) {
            return Ok(token_mask::only(self.vocab, [token]));
        }
        let mut mask = match &mut self.inner {
            Some(inner) => inner.mask()?,
            None => token_mask::all(self.vocab),
        };
        self.restrict(&mut mask);
        Ok(mask)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        if self.forced < self.rules.forced.len() {
            self.forced += 1;
            return Ok(false);
        }
        self.take(token);
        self.inner.as_mut().map_or(Ok(false), |inner| inner.accept(token))
    }

    fn look_ahead(&mut self, drafts: &[u32]) -> Vec<Result<Vec<u32>, String>> {
        if self.forced < self.rules.forced.len() {
            return vec![self.mask()];
        }
        let mut masks = match &mut self.inner {
            Some(inner) => inner.look_ahead(drafts),
            None => vec![Ok(token_mask::all(self.vocab)); drafts.len() + 1],
        };
        let (known, thinking) = (self.text.len(), self.thinking.clone());
        for (at, mask) in masks.iter_mut().enumerate() {
            if let Ok(mask) = mask {
                self.restrict(mask);
            }
            drafts.get(at).into_iter().for_each(|&draft| self.take(draft));
        }
        self.text.truncate(known);
        self.thinking = thinking;
        masks
    }

    fn looks_ahead(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.looks_ahead())
    }

    fn forced(&mut self) -> Vec<u32> {
        let scored = self.forced < self.rules.forced.len();
        let closing = self.thinking.as_ref().map_or(&[][..], Thinking::closing);
        if !scored && !closing.is_empty() {
            return closing.to_vec();
        }
        self.inner.as_mut().filter(|_| !scored).map_or(vec![], |inner| inner.forced())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruled(rules: TokenRules, text: Vec<u32>) -> Ruled {
        Ruled { rules, thinking: None, inner: None, end_tokens: [0].into(), vocab: 7, forced: 0, text }
    }

    #[test]
    fn tokens_are_forced_then_restricted() {
        let rules = TokenRules {
            forced: [5, 0].into(),
            min_tokens: 2,
            bad_words: [vec![3], vec![1, 2]].into(),
            thinking: None,
        };
        let mut ruled = ruled(rules, vec![]);
        for (mask, token) in [
            (0b10_0000, 5), // forced, also the end token
            (0b00_0001, 0),
            (0b111_0110, 1), // no end, no 3
            (0b111_0010, 4), // and no 2 after 1
            (0b111_0111, 2), // the end, and 2 again
        ] {
            assert_eq!(ruled.mask().unwrap(), [mask]);
            assert_eq!(ruled.accept(token), Ok(false));
        }
    }

    #[test]
    fn drafts_are_restricted_as_the_tokens_would_be() {
        let rules = TokenRules { min_tokens: 2, bad_words: [vec![1, 2]].into(), ..TokenRules::default() };
        let mut ruled = ruled(rules, vec![5]);
        let ahead = ruled.look_ahead(&[1, 4]);
        assert_eq!(ahead, [Ok(vec![0b111_1110]), Ok(vec![0b111_1011]), Ok(vec![0b111_1111])]);
        for (mask, token) in ahead.into_iter().zip([1, 4, 3]) {
            assert_eq!(ruled.mask(), mask);
            ruled.accept(token).unwrap();
        }
    }
}
