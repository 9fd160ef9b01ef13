//! What may precede a constrained answer: reasoning, or a tool call instead of it.

use std::sync::Arc;

use tern_engine::Constraint;
use tern_text::{CallStyle, ChannelStyle, Markup, ReasoningStyle, Tokenizer};

use crate::{Model, token_mask};

/// The end of a chat's prompt, and what may precede the constrained answer.
#[derive(Clone, Copy, Debug)]
pub struct ChatStart<'a> {
    /// The end of the prompt, which may open reasoning.
    pub prompt_tail: &'a str,
    /// The format of tool calls, if the model may call a tool instead of answering.
    pub calls: Option<CallStyle>,
}

/// The token that starts a call; without one a call cannot be distinguished from an answer.
pub fn call_token(tokenizer: &Tokenizer, style: &CallStyle) -> Option<u32> {
    let mark = if style.open.is_empty() { style.begin } else { style.open };
    let mark = mark.trim_ascii().lines().next()?;
    let first =
        || tokenizer.encode(mark, false, true).first().copied().filter(|&id| tokenizer.is_control(id));
    tokenizer.id_of(mark).or_else(first)
}

/// The part of a text before the constraint applies.
#[derive(Clone, Debug)]
pub(crate) struct Preamble {
    state: State,
    /// The token that begins reasoning, until it was sampled.
    think: Option<u32>,
    /// The token that begins a call.
    call: Option<u32>,
    /// How the messages of an answer begin, if it has several.
    headers: Option<Headers>,
    /// What ends reasoning.
    end: Vec<u8>,
    /// The last bytes of the reasoning, fewer than its end marker has.
    tail: Vec<u8>,
    tokenizer: Arc<Tokenizer>,
    end_tokens: Arc<[u32]>,
}

/// The headers of messages that may begin, as tokens, and what follows each.
#[derive(Clone, Debug)]
struct Headers {
    /// Before the header of a message after the first.
    start: Vec<u32>,
    known: Vec<(Vec<u32>, State)>,
    /// The tokens of the current header.
    read: Vec<u32>,
}

impl Headers {
    fn new(tokenizer: &Tokenizer, markup: &Markup, chat: ChatStart<'_>, forced: bool) -> Option<Headers> {
        // a header that is a recipient is part of the constraint of calls
        let style =
            markup.channels.filter(|style| !(style.answer.is_empty() || forced && style.recipients))?;
        let tokens = |text: &str| tokenizer.encode(text, false, true);
        let mut known = Vec::new();
        known.extend(markup.reasoning.map(|style| (tokens(style.begin), State::Reasoning)));
        match (forced, style.call) {
            // calls are in the text of an answer
            (true, "") => known.push((tokens(style.answer), State::Constrained)),
            (true, call) => known.push((tokens(call), State::Constrained)),
            (false, call) => {
                known.push((tokens(style.answer), State::Constrained));
                known.extend(chat.calls.filter(|_| !call.is_empty()).map(|_| (tokens(call), State::Free)));
            }
        }
        known.retain(|(tokens, _)| !tokens.is_empty());
        Some(Headers { start: tokens(style.start), known, read: vec![] })
    }

    /// The tokens that may follow.
    fn next(&self) -> impl Iterator<Item = u32> {
        let read = &self.read;
        let next = |(tokens, _): &(Vec<u32>, State)| {
            tokens.strip_prefix(read.as_slice()).and_then(|rest| rest.first().copied())
        };
        self.known.iter().filter_map(next)
    }

    /// Takes a token; returns the state after a whole header.
    fn take(&mut self, token: u32) -> Result<Option<State>, String> {
        if !self.next().any(|next| next == token) {
            return Err(format!("token {token} is not part of a header"));
        }
        self.read.push(token);
        let Some(at) = self.known.iter().position(|(tokens, _)| *tokens == self.read) else {
            return Ok(None);
        };
        self.read.clear();
        let state = self.known[at].1;
        if state == State::Reasoning {
            // it does not reason twice, and the next message has its start
            self.known.remove(at);
            for (tokens, _) in &mut self.known {
                tokens.splice(0..0, self.start.iter().copied());
            }
        }
        Ok(Some(state))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the header of a message.
    Header,
    /// The next token decides.
    Undecided,
    Reasoning,
    Constrained,
    /// In a call.
    Free,
}

impl Preamble {
    /// None if the constraint applies from the first token on.
    pub(crate) fn new(model: &Model, chat: ChatStart<'_>, forced: bool) -> Option<Preamble> {
        let tokenizer = model.tokenizer();
        let headers = model.markup().and_then(|markup| {
            let starts = |style: ChannelStyle| chat.prompt_tail.trim_ascii_end().ends_with(style.start);
            Headers::new(tokenizer, &markup, chat, forced).filter(|_| markup.channels.is_some_and(starts))
        });
        let style: Option<ReasoningStyle> = model.markup().and_then(|markup| markup.reasoning);
        let tail = chat.prompt_tail.trim_ascii_end();
        let ends_with =
            |mark: fn(&ReasoningStyle) -> &str| style.is_some_and(|style| tail.ends_with(mark(&style)));
        let state = match headers {
            Some(_) => State::Header,
            None if ends_with(|style| style.begin) => State::Reasoning,
            None => State::Undecided,
        };
        let think = style.and_then(|style| tokenizer.id_of(style.begin));
        let preamble = Preamble {
            state,
            // a prompt that closed the reasoning asks for none
            think: think.filter(|_| state == State::Undecided && !ends_with(|style| style.end)),
            call: chat.calls.and_then(|style| call_token(tokenizer, &style)),
            headers,
            end: style.map_or(vec![], |style| style.end.as_bytes().to_vec()),
            tail: vec![],
            tokenizer: Arc::clone(tokenizer),
            end_tokens: Arc::clone(model.end_tokens()),
        };
        let waits = state != State::Undecided || preamble.think.is_some() || preamble.call.is_some();
        waits.then_some(preamble)
    }

    /// All tokens. Without end tokens during reasoning, which would leave the text without an answer.
    fn all(&self, with_ends: bool) -> Vec<u32> {
        let mut mask = token_mask::all(self.tokenizer.vocab_size());
        self.end_tokens.iter().filter(|_| !with_ends).for_each(|&id| token_mask::clear(&mut mask, id));
        mask
    }

    /// Follows the reasoning to its end.
    fn reason(&mut self, token: u32) {
        self.tail.extend_from_slice(self.tokenizer.token_bytes(token, true));
        if self.tail.windows(self.end.len().max(1)).any(|window| window == self.end) {
            self.state = if self.headers.is_some() { State::Header } else { State::Undecided };
        }
        let keep = self.end.len().saturating_sub(1);
        self.tail.drain(..self.tail.len().saturating_sub(keep));
    }

    /// Takes a token; false if it belongs to the constraint.
    fn take(&mut self, token: u32) -> Result<bool, String> {
        match self.state {
            State::Constrained => return Ok(false),
            State::Free => {}
            State::Header => {
                let headers = self.headers.as_mut();
                let state = headers.map_or(Ok(Some(State::Constrained)), |headers| headers.take(token))?;
                self.state = state.unwrap_or(State::Header);
            }
            State::Reasoning => self.reason(token),
            State::Undecided if self.think == Some(token) => {
                self.think = None; // once
                self.state = State::Reasoning;
            }
            State::Undecided if self.call == Some(token) => self.state = State::Free,
            State::Undecided => {
                self.state = State::Constrained;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A constraint that applies after the preamble.
pub(crate) struct AfterPreamble<C> {
    pub(crate) constraint: C,
    pub(crate) preamble: Preamble,
}

impl<C: Constraint> Constraint for AfterPreamble<C> {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        match self.preamble.state {
            State::Constrained => self.constraint.mask(),
            State::Reasoning => Ok(self.preamble.all(false)),
            State::Free => Ok(self.preamble.all(true)),
            State::Header => {
                let next = self.preamble.headers.iter().flat_map(Headers::next);
                Ok(token_mask::only(self.preamble.tokenizer.vocab_size(), next))
            }
            State::Undecided => {
                let mut mask = self.constraint.mask()?;
                let also = [self.preamble.think, self.preamble.call].into_iter().flatten();
                also.for_each(|id| token_mask::set(&mut mask, id));
                Ok(mask)
            }
        }
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        match self.preamble.take(token)? {
            true => Ok(false),
            false => self.constraint.accept(token),
        }
    }

    fn look_ahead(&mut self, drafts: &[u32]) -> Vec<Result<Vec<u32>, String>> {
        let known = self.preamble.clone();
        let (mut masks, mut rest) = (vec![], drafts);
        loop {
            if self.preamble.state == State::Constrained {
                masks.extend(self.constraint.look_ahead(rest));
                break;
            }
            masks.push(self.mask());
            let Some((draft, after)) = rest.split_first() else { break };
            match self.preamble.take(*draft) {
                Ok(true) => rest = after,
                Ok(false) => {
                    // the constraint takes this draft; what is allowed instead of it is in the last mask
                    masks.extend(self.constraint.look_ahead(rest).into_iter().skip(1));
                    break;
                }
                Err(_) => break,
            }
        }
        self.preamble = known;
        masks
    }

    fn looks_ahead(&self) -> bool {
        self.constraint.looks_ahead()
    }

    fn forced(&mut self) -> Vec<u32> {
        match self.preamble.state {
            State::Constrained => self.constraint.forced(),
            _ => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows token 7 and is complete after it.
    struct Seven;

    impl Constraint for Seven {
        fn mask(&mut self) -> Result<Vec<u32>, String> {
            Ok(vec![1 << 7, 0, 0, 0])
        }

        fn accept(&mut self, token: u32) -> Result<bool, String> {
            if token == 7 { Ok(true) } else { Err(format!("not {token}")) }
        }
    }

    fn after_preamble(state: State) -> AfterPreamble<Seven> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tern-stories-1bit.gguf");
        let metadata = tern_formats::Checkpoint::open(path.as_ref()).unwrap().metadata;
        let tokenizer = Arc::new(Tokenizer::from_metadata(&metadata).unwrap());
        let preamble = Preamble {
            state,
            think: Some(1),
            call: Some(2),
            headers: None,
            end: b"</think>".to_vec(),
            tail: vec![],
            tokenizer,
            end_tokens: [0].into(),
        };
        AfterPreamble { constraint: Seven, preamble }
    }

    #[test]
    fn the_first_token_decides() {
        let mut constraint = after_preamble(State::Undecided);
        assert_eq!(constraint.mask().unwrap(), [1 << 1 | 1 << 2 | 1 << 7, 0, 0, 0]);
        assert_eq!(constraint.accept(7), Ok(true));
        assert_eq!(constraint.mask().unwrap()[0], 1 << 7);
        let mut constraint = after_preamble(State::Undecided);
        assert_eq!(constraint.accept(2), Ok(false));
        assert_eq!(constraint.mask().unwrap()[0], u32::MAX); // the call may end the text
        assert_eq!(constraint.accept(9), Ok(false));
    }

    #[test]
    fn drafts_are_masked_as_the_tokens_would_be() {
        for (state, drafts) in [
            (State::Undecided, vec![7]),
            (State::Undecided, vec![2, 9, 7]),
            (State::Undecided, vec![1, 9, 9]),
            (State::Constrained, vec![7]),
        ] {
            let mut constraint = after_preamble(state);
            let ahead = constraint.look_ahead(&drafts);
            assert!(!ahead.is_empty() && ahead.len() <= drafts.len() + 1);
            for (mask, draft) in ahead.into_iter().zip(drafts) {
                assert_eq!(constraint.mask(), mask, "{state:?}");
                constraint.accept(draft).unwrap();
            }
        }
    }

    #[test]
    fn headers_of_messages_precede_the_constraint() {
        let mut constraint = after_preamble(State::Header);
        let tokenizer = Arc::clone(&constraint.preamble.tokenizer);
        let source =
            "<|channel|>analysis<|message|> <|end|> <|channel|>commentary <|start|>assistant to=functions.";
        let markup = Markup::of(source);
        let chat = ChatStart { prompt_tail: "<|start|>assistant", calls: None };
        let headers = |forced| Headers::new(&tokenizer, &markup, chat, forced);
        let tokens = |text: &str| tokenizer.encode(text, false, true);
        let allowed = |mask: Vec<u32>, id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
        for (forced, header) in [(false, "<|channel|>final<|message|>"), (true, "<|channel|>commentary")] {
            for reasoning in ["", "<|channel|>analysis<|message|>Hm.<|end|>"] {
                constraint.preamble.state = State::Header;
                constraint.preamble.headers = headers(forced);
                constraint.preamble.end = b"<|end|>".to_vec();
                constraint.preamble.tail.clear();
                let start = if reasoning.is_empty() { "" } else { "<|start|>assistant" };
                let path = [tokens(reasoning), tokens(start), tokens(header)].concat();
                for id in path {
                    assert!(allowed(constraint.mask().unwrap(), id), "{forced} {reasoning} {id}");
                    assert_eq!(constraint.accept(id), Ok(false));
                }
                assert_eq!(constraint.mask().unwrap()[0], 1 << 7);
                assert_eq!(constraint.accept(7), Ok(true));
            }
            constraint.preamble.state = State::Header;
            constraint.preamble.headers = headers(forced);
            assert!(constraint.accept(7).is_err());
        }
    }

    #[test]
    fn a_constrained_answer_has_its_recipient_and_a_forced_call_is_one() {
        let tokenizer = after_preamble(State::Header).preamble.tokenizer;
        let markup = Markup::of(">>>${recipient} '>>>all\\n'");
        let chat = ChatStart { prompt_tail: "assistant\n\n>>>", calls: None };
        assert!(Headers::new(&tokenizer, &markup, chat, true).is_none(), "the call begins with its name");
        let mut headers = Headers::new(&tokenizer, &markup, chat, false).unwrap();
        let ids = tokenizer.encode("all\n", false, true);
        let states: Vec<Option<State>> = ids.iter().map(|id| headers.take(*id).unwrap()).collect();
        assert_eq!(states.last(), Some(&Some(State::Constrained)));
        assert!(states[..states.len() - 1].iter().all(Option::is_none));
    }

    #[test]
    fn constraints_wait_for_the_end_of_reasoning_however_it_is_cut() {
        let mut constraint = after_preamble(State::Undecided);
        constraint.accept(1).unwrap();
        let tokenizer = Arc::clone(&constraint.preamble.tokenizer);
        for id in tokenizer.encode("Not </thin yet</think", false, true) {
            assert_eq!(constraint.mask().unwrap()[0], u32::MAX - 1); // all but the end of the text
            assert_eq!(constraint.accept(id), Ok(false));
        }
        constraint.accept(tokenizer.encode(">", false, true)[0]).unwrap();
        assert_eq!(constraint.mask().unwrap()[0], 1 << 2 | 1 << 7); // it does not reason twice
        assert!(constraint.accept(9).is_err());
    }
}
