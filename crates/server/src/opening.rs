//! What may come before an answer's rules begin: reasoning, or a tool call instead.

use std::sync::Arc;

use tern_engine::Rules;
use tern_text::{CallStyle, ReasoningStyle, Tokenizer};

use crate::model::Served;

/// What is known of a chat whose answer has rules.
pub(crate) struct Chat<'a> {
    pub(crate) prompt_tail: &'a str,
    /// How tools are called, where the model may call one instead of answering.
    pub(crate) calls: Option<CallStyle>,
}

/// The one token that begins a call, without which a call cannot be told from an answer.
pub(crate) fn call_token(tokenizer: &Tokenizer, style: &CallStyle) -> Option<u32> {
    let mark = if style.open.is_empty() { style.begin } else { style.open };
    tokenizer.id_of(mark.trim_ascii())
}

/// Where a text stands before its rules begin.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    state: State,
    /// The token that begins reasoning, until it came.
    think: Option<u32>,
    /// The token that begins a call.
    call: Option<u32>,
    /// What ends reasoning.
    end: Vec<u8>,
    /// The last bytes of the reasoning, fewer than its end has.
    tail: Vec<u8>,
    tokenizer: Arc<Tokenizer>,
    end_tokens: Arc<[u32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next token decides.
    Undecided,
    Reasoning,
    Ruled,
    /// In a call.
    Free,
}

impl Opening {
    /// None where the rules hold from the first token on.
    pub(crate) fn new(served: &Served, chat: Chat<'_>) -> Option<Opening> {
        let tokenizer = &served.model.tokenizer;
        let style: Option<ReasoningStyle> = served.markup.and_then(|markup| markup.reasoning);
        let tail = chat.prompt_tail.trim_ascii_end();
        let ends_with =
            |mark: fn(&ReasoningStyle) -> &str| style.is_some_and(|style| tail.ends_with(mark(&style)));
        let state = if ends_with(|style| style.begin) { State::Reasoning } else { State::Undecided };
        let think = style.and_then(|style| tokenizer.id_of(style.begin));
        let opening = Opening {
            state,
            // a prompt that closed the reasoning wants none
            think: think.filter(|_| state == State::Undecided && !ends_with(|style| style.end)),
            call: chat.calls.and_then(|style| call_token(tokenizer, &style)),
            end: style.map_or(vec![], |style| style.end.as_bytes().to_vec()),
            tail: vec![],
            tokenizer: Arc::clone(tokenizer),
            end_tokens: Arc::clone(&served.end_tokens),
        };
        let waits = state == State::Reasoning || opening.think.is_some() || opening.call.is_some();
        waits.then_some(opening)
    }

    /// All tokens. Without the ends of a text in reasoning, which would leave it without an answer.
    fn all(&self, with_ends: bool) -> Vec<u32> {
        let vocab = self.tokenizer.vocab_size();
        let mut mask = vec![u32::MAX; vocab.div_ceil(32)];
        let past = (vocab..vocab.next_multiple_of(32)).map(|id| id as u32);
        let ends = self.end_tokens.iter().copied().filter(|_| !with_ends);
        for id in past.chain(ends) {
            if let Some(word) = mask.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
        mask
    }

    /// Follows the reasoning to its end.
    fn reason(&mut self, token: u32) {
        self.tail.extend_from_slice(self.tokenizer.token_bytes(token, true));
        if self.tail.windows(self.end.len().max(1)).any(|window| window == self.end) {
            self.state = State::Undecided;
        }
        let keep = self.end.len().saturating_sub(1);
        self.tail.drain(..self.tail.len().saturating_sub(keep));
    }
}

/// Rules that begin when the opening is over.
pub(crate) struct Opened<R> {
    pub(crate) rules: R,
    pub(crate) opening: Opening,
}

impl<R: Rules> Rules for Opened<R> {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        match self.opening.state {
            State::Ruled => self.rules.mask(),
            State::Reasoning => Ok(self.opening.all(false)),
            State::Free => Ok(self.opening.all(true)),
            State::Undecided => {
                let mut mask = self.rules.mask()?;
                for id in [self.opening.think, self.opening.call].into_iter().flatten() {
                    if let Some(word) = mask.get_mut(id as usize / 32) {
                        *word |= 1 << (id % 32);
                    }
                }
                Ok(mask)
            }
        }
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        let opening = &mut self.opening;
        match opening.state {
            State::Free => Ok(false),
            State::Ruled => self.rules.accept(token),
            State::Reasoning => {
                opening.reason(token);
                Ok(false)
            }
            State::Undecided if opening.think == Some(token) => {
                opening.think = None; // once
                opening.state = State::Reasoning;
                Ok(false)
            }
            State::Undecided if opening.call == Some(token) => {
                opening.state = State::Free;
                Ok(false)
            }
            State::Undecided => {
                opening.state = State::Ruled;
                self.rules.accept(token)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules that allow token 7 and are over after it.
    struct Seven;

    impl Rules for Seven {
        fn mask(&mut self) -> Result<Vec<u32>, String> {
            Ok(vec![1 << 7, 0, 0, 0])
        }

        fn accept(&mut self, token: u32) -> Result<bool, String> {
            if token == 7 { Ok(true) } else { Err(format!("not {token}")) }
        }
    }

    fn opened(state: State) -> Opened<Seven> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/models/tern-stories-1bit.gguf");
        let metadata = tern_formats::Checkpoint::open(path.as_ref()).unwrap().metadata;
        let tokenizer = Arc::new(Tokenizer::from_metadata(&metadata).unwrap());
        let opening = Opening {
            state,
            think: Some(1),
            call: Some(2),
            end: b"</think>".to_vec(),
            tail: vec![],
            tokenizer,
            end_tokens: [0].into(),
        };
        Opened { rules: Seven, opening }
    }

    #[test]
    fn the_first_token_decides() {
        let mut rules = opened(State::Undecided);
        assert_eq!(rules.mask().unwrap(), [1 << 1 | 1 << 2 | 1 << 7, 0, 0, 0]);
        assert_eq!(rules.accept(7), Ok(true));
        assert_eq!(rules.mask().unwrap()[0], 1 << 7);
        let mut rules = opened(State::Undecided);
        assert_eq!(rules.accept(2), Ok(false));
        assert_eq!(rules.mask().unwrap()[0], u32::MAX); // the call may end the text
        assert_eq!(rules.accept(9), Ok(false));
    }

    #[test]
    fn rules_wait_for_the_end_of_reasoning_however_it_is_cut() {
        let mut rules = opened(State::Undecided);
        rules.accept(1).unwrap();
        let tokenizer = Arc::clone(&rules.opening.tokenizer);
        for id in tokenizer.encode("Not </thin yet</think", false, true) {
            assert_eq!(rules.mask().unwrap()[0], u32::MAX - 1); // all but the end of the text
            assert_eq!(rules.accept(id), Ok(false));
        }
        rules.accept(tokenizer.encode(">", false, true)[0]).unwrap();
        assert_eq!(rules.mask().unwrap()[0], 1 << 2 | 1 << 7); // it does not reason twice
        assert!(rules.accept(9).is_err());
    }
}
