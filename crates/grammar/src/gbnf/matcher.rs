//! The state of one text in a GBNF grammar, and the tokens that may follow it.

use std::sync::Arc;

use llguidance::toktrie::{Recognizer, TokenizerEnv};

use super::automaton::{Automaton, DEAD};
use super::rules::Rules;
use crate::vocabulary::Vocabulary;

/// One text.
#[derive(Clone)]
pub(crate) struct GbnfMatcher {
    vocabulary: Arc<Vocabulary>,
    automaton: Automaton,
    state: u32,
    /// The mask of this state, if it was computed.
    mask: Option<(u32, Vec<u32>)>,
    /// An end token was taken.
    ended: bool,
}

impl GbnfMatcher {
    /// The empty text; an error if no text of the vocabulary begins a text of the grammar.
    pub(crate) fn new(rules: Rules, vocabulary: Arc<Vocabulary>) -> Result<GbnfMatcher, String> {
        let mut automaton = Automaton::new(Arc::new(rules));
        let state = automaton.start();
        let mut matcher = GbnfMatcher { vocabulary, automaton, state, mask: None, ended: false };
        if matcher.mask()?.iter().all(|&word| word == 0) {
            return Err("no text of this vocabulary matches it".into());
        }
        Ok(matcher)
    }

    /// The tokens that may follow; the end tokens if the text may end.
    pub(crate) fn mask(&mut self) -> Result<Vec<u32>, String> {
        if self.automaton.is_large() {
            self.state = self.automaton.keep_only(self.state);
            self.mask = None;
        }
        if let Some((_, mask)) = self.mask.as_ref().filter(|(state, _)| *state == self.state) {
            return Ok(mask.clone());
        }
        self.automaton.begin();
        let trie = self.vocabulary.tok_trie();
        let mut tokens = trie.alloc_token_set();
        if !self.ended {
            let mut walk = Walk { automaton: &mut self.automaton, states: vec![self.state] };
            trie.add_bias(&mut walk, &mut tokens, &[]);
            self.check()?;
        }
        if self.automaton.accepts(self.state) {
            self.vocabulary.tokenizer().eog().iter().for_each(|&id| tokens.allow_token(id));
        }
        let mask = tokens.as_slice().to_vec();
        self.mask = Some((self.state, mask.clone()));
        Ok(mask)
    }

    /// Takes a token; whether the text is complete and nothing can follow.
    pub(crate) fn accept(&mut self, token: u32) -> Result<bool, String> {
        if self.vocabulary.tokenizer().eog().contains(&token) {
            self.ended = true;
            return match self.automaton.accepts(self.state) {
                true => Ok(true),
                false => Err(format!("token {token} ends the text too early")),
            };
        }
        self.automaton.begin();
        let vocabulary = Arc::clone(&self.vocabulary);
        for &byte in vocabulary.tok_trie().token(token) {
            self.state = self.automaton.next(self.state, byte);
        }
        self.check()?;
        if self.state == DEAD {
            return Err(format!("token {token} does not match"));
        }
        Ok(self.automaton.is_final(self.state))
    }

    fn check(&self) -> Result<(), String> {
        match self.automaton.exceeded {
            true => Err("it is too ambiguous, or too deep".into()),
            false => Ok(()),
        }
    }
}

/// The states along a path of the token tree.
struct Walk<'a> {
    automaton: &'a mut Automaton,
    /// The last is the current one.
    states: Vec<u32>,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, count: usize) {
        self.states.truncate(self.states.len() - count);
    }

    fn collapse(&mut self) {
        let last = self.states.pop();
        self.states.clear();
        self.states.extend(last);
    }

    fn trie_finished(&mut self) {
        self.states.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        let state = self.states.last().map_or(DEAD, |&state| self.automaton.next(state, byte));
        if state != DEAD {
            self.states.push(state);
        }
        state != DEAD
    }
}
