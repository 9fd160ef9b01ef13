//! A compiled grammar, and the state of one sequence in it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::Matcher;
use tern_engine::Constraint;

use crate::error::first_line;
use crate::gbnf::GbnfMatcher;

/// A compiled grammar. Each sequence needs its own [`GrammarConstraint`].
pub struct CompiledGrammar {
    pub(crate) matcher: TextMatcher,
    /// Size of the vocabulary.
    pub(crate) tokens: usize,
}

/// What follows a text: the parser, or the automaton of a GBNF grammar.
pub(crate) enum TextMatcher {
    Parser(Box<Matcher>),
    Gbnf(Box<GbnfMatcher>),
}

impl CompiledGrammar {
    /// The constraint of a new sequence.
    pub fn constraint(&self) -> GrammarConstraint {
        let matcher = match &self.matcher {
            TextMatcher::Parser(matcher) => TextMatcher::Parser(Box::new(matcher.deep_clone())),
            TextMatcher::Gbnf(matcher) => TextMatcher::Gbnf(matcher.clone()),
        };
        GrammarConstraint { matcher, tokens: self.tokens }
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompiledGrammar")
    }
}

/// The state of one sequence in a grammar.
pub struct GrammarConstraint {
    matcher: TextMatcher,
    tokens: usize,
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        let matcher = &mut self.matcher;
        let mut words = guarded(|| match matcher {
            TextMatcher::Parser(matcher) => {
                let mask = matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
                Ok(mask.as_slice().to_vec())
            }
            TextMatcher::Gbnf(matcher) => matcher.mask(),
        })?;
        words.truncate(self.tokens.div_ceil(32));
        Ok(words)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        let matcher = &mut self.matcher;
        guarded(|| match matcher {
            TextMatcher::Parser(matcher) => {
                matcher.consume_token(token).map_err(|error| error.to_string())?;
                Ok(matcher.is_stopped())
            }
            TextMatcher::Gbnf(matcher) => matcher.accept(token),
        })
    }

    fn look_ahead(&mut self, drafts: &[u32]) -> Vec<Result<Vec<u32>, String>> {
        let (mut masks, mut taken) = (vec![self.mask()], 0);
        if !self.looks_ahead() {
            return masks;
        }
        for draft in drafts {
            let allowed = |mask: &Vec<u32>| {
                mask.get(*draft as usize / 32).is_some_and(|word| word >> (draft % 32) & 1 == 1)
            };
            if !matches!(masks.last(), Some(Ok(mask)) if allowed(mask)) {
                break;
            }
            let Ok(complete) = self.accept(*draft) else { break };
            taken += 1;
            if complete {
                break;
            }
            masks.push(self.mask());
        }
        let matcher = &mut self.matcher;
        let back = guarded(|| match matcher {
            TextMatcher::Parser(matcher) => matcher.rollback(taken).map_err(|error| error.to_string()),
            TextMatcher::Gbnf(_) => Ok(()),
        });
        // the state is lost: nothing may follow
        back.map_or_else(|error| vec![Err(error)], |()| masks)
    }

    /// The automaton of a GBNF grammar drops states that it has left, and cannot go back to them.
    fn looks_ahead(&self) -> bool {
        matches!(self.matcher, TextMatcher::Parser(_))
    }

    fn forced(&mut self) -> Vec<u32> {
        match &mut self.matcher {
            TextMatcher::Parser(matcher) => guarded(|| Ok(matcher.compute_ff_tokens())).unwrap_or_default(),
            TextMatcher::Gbnf(_) => vec![],
        }
    }
}

impl std::fmt::Debug for GrammarConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GrammarConstraint")
    }
}

/// Turns panics of the parser into errors: its documentation allows them on unforeseen inputs.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // after a panic the parser is in its error state, or is dropped with the error
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(format!("the grammar allows no continuation: {}", first_line(error))),
        Err(_) => Err("the grammar allows no continuation: the parser failed".into()),
    }
}
