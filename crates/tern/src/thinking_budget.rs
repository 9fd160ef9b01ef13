//! Thinking budgets: the number of tokens of reasoning after which its end marker follows, and the answer
//! begins.

use std::sync::Arc;

use tern_text::{ReasoningStyle, Tokenizer};

use crate::Model;

/// How many tokens an answer may reason, and how its model marks reasoning.
#[derive(Clone, Debug)]
pub struct ThinkingBudget {
    tokens: usize,
    style: ReasoningStyle,
    /// Whether the prompt opens the reasoning.
    is_open: bool,
    /// The begin marker, up to its last token that is not a control token.
    begin: Vec<u32>,
    /// What ends reasoning: the end marker, after a line feed if the template writes one.
    closing: Vec<u32>,
    tokenizer: Arc<Tokenizer>,
}

impl Model {
    /// A budget of reasoning for the answer to a prompt that ends with `prompt_tail`; none if the model's
    /// template marks no reasoning.
    pub fn thinking_budget(&self, tokens: usize, prompt_tail: &str) -> Option<ThinkingBudget> {
        let template = self.template()?;
        let style = template.markup().reasoning?;
        let own_line = template.writes_on_its_own_line(style.end);
        ThinkingBudget::new(tokens, style, own_line, prompt_tail, self.tokenizer())
    }
}

impl ThinkingBudget {
    fn new(
        tokens: usize,
        style: ReasoningStyle,
        own_line: bool,
        prompt_tail: &str,
        tokenizer: &Arc<Tokenizer>,
    ) -> Option<ThinkingBudget> {
        let encode = |text: &str| tokenizer.encode(text, false, true);
        let closing = encode(&format!("{}{}", if own_line { "\n" } else { "" }, style.end));
        let mut begin = encode(style.begin);
        let is_text = |&token: &u32| !tokenizer.is_control(token);
        begin.truncate(begin.iter().rposition(is_text).map_or(begin.len(), |last| last + 1));
        (!closing.is_empty()).then(|| ThinkingBudget {
            tokens,
            style,
            is_open: prompt_tail.trim_ascii_end().ends_with(style.begin.trim_ascii_end()),
            begin,
            closing,
            tokenizer: Arc::clone(tokenizer),
        })
    }
}

/// Budgets are of one request and are not compared otherwise.
impl PartialEq for ThinkingBudget {
    fn eq(&self, other: &ThinkingBudget) -> bool {
        (self.tokens, self.style, self.is_open) == (other.tokens, other.style, other.is_open)
    }
}

/// The reasoning of one text.
#[derive(Clone, Debug)]
pub(crate) struct Thinking {
    budget: Arc<ThinkingBudget>,
    /// Whether the text is inside reasoning.
    is_open: bool,
    /// Tokens of reasoning so far.
    spent: usize,
    /// Tokens of the end of reasoning that were forced.
    forced: usize,
    /// The last tokens of the text, as many as a begin marker has without its last one.
    last: Vec<u32>,
    /// The last bytes of the text, fewer than the longer marker has.
    tail: Vec<u8>,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Anything,
    /// Reasoning ends with this token.
    Only(u32),
    /// It would begin reasoning, whose budget is spent.
    AllBut(u32),
}

impl Thinking {
    pub(crate) fn new(budget: &Arc<ThinkingBudget>) -> Thinking {
        let (budget, is_open) = (Arc::clone(budget), budget.is_open);
        Thinking { budget, is_open, spent: 0, forced: 0, last: vec![], tail: vec![] }
    }

    pub(crate) fn next(&self) -> Next {
        let ThinkingBudget { tokens, begin, .. } = &*self.budget;
        if self.spent < *tokens {
            return Next::Anything;
        }
        if self.is_open {
            return self.closing().first().map_or(Next::Anything, |&token| Next::Only(token));
        }
        match begin.split_last() {
            Some((&last, before)) if self.last.ends_with(before) => Next::AllBut(last),
            _ => Next::Anything,
        }
    }

    /// What must still follow to end the reasoning; nothing while the budget lasts.
    pub(crate) fn closing(&self) -> &[u32] {
        // the rest of a character is generated before
        let must_end = self.is_open && self.spent >= self.budget.tokens;
        if !must_end || self.forced == 0 && is_cut(&self.tail) {
            return &[];
        }
        self.budget.closing.get(self.forced..).unwrap_or_default()
    }

    pub(crate) fn accept(&mut self, token: u32) {
        let is_closing = self.closing().first() == Some(&token);
        let ThinkingBudget { style, begin, tokenizer, .. } = &*self.budget;
        self.tail.extend_from_slice(tokenizer.token_bytes(token, true));
        self.last.push(token);
        let mark = if self.is_open { style.end } else { style.begin }.trim_ascii().as_bytes();
        let found = self.tail.windows(mark.len().max(1)).any(|window| window == mark);
        if self.is_open {
            self.spent += usize::from(!is_closing && !found);
            self.forced = if is_closing { self.forced + 1 } else { 0 };
        }
        if found {
            self.is_open = !self.is_open;
            self.forced = 0;
            self.tail.clear();
        }
        let keep = style.end.len().max(style.begin.len());
        self.tail.drain(..self.tail.len().saturating_sub(keep));
        let keep = begin.len().saturating_sub(1);
        self.last.drain(..self.last.len().saturating_sub(keep));
    }
}

/// Whether a text ends within a character.
fn is_cut(text: &[u8]) -> bool {
    let from = text.len().saturating_sub(3);
    let cut = |at: usize| std::str::from_utf8(&text[at..]).is_err_and(|error| error.error_len().is_none());
    (from..text.len()).any(|at| text[at] >= 0xc0 && cut(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: ReasoningStyle = ReasoningStyle { begin: "<think>", end: "</think>", dropped: &[] };

    /// The tokens of `text` while everything is allowed, and what is forced where the budget ends.
    fn follow(budget: usize, prompt_tail: &str, text: &str) -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tern-stories-1bit.gguf");
        let metadata = tern_formats::Checkpoint::open(path.as_ref()).unwrap().metadata;
        let tokenizer = Arc::new(Tokenizer::from_metadata(&metadata).unwrap());
        let budget = ThinkingBudget::new(budget, STYLE, true, prompt_tail, &tokenizer).unwrap();
        let mut thinking = Thinking::new(&Arc::new(budget));
        let (mut out, mut rest) = (vec![], tokenizer.encode(text, false, true).into_iter());
        loop {
            let token = match thinking.next() {
                Next::Only(token) => Some(token),
                Next::Anything => rest.next(),
                Next::AllBut(token) => rest.next().filter(|next| *next != token),
            };
            let Some(token) = token else { break };
            thinking.accept(token);
            out.push(token);
        }
        out.iter().map(|&token| String::from_utf8_lossy(tokenizer.token_bytes(token, true))).collect()
    }

    #[test]
    fn reasoning_ends_at_the_budget_and_only_once() {
        for (budget, prompt_tail, text, want) in [
            (4, "<think>\n", "abcdef", "abcd\n</think>ef"),
            (0, "<think>\n", "ab", "\n</think>ab"),
            (9, "<think>\n", "ab</think>cd", "ab</think>cd"),
            (3, "", "<think>abcdef", "<think>abc\n</think>def"),
            // the budget is spent: no second reasoning
            (1, "", "<think>abc<think>d", "<think>a\n</think>bc<think"),
            (0, "", "ab<think>", "ab<think"),
        ] {
            assert_eq!(follow(budget, prompt_tail, text), want, "{budget} {prompt_tail}");
        }
    }

    #[test]
    fn a_character_is_not_cut() {
        for text in ["aé", "a€", "a😀"] {
            assert!((2..text.len()).all(|len| is_cut(&text.as_bytes()[..len])), "{text}");
            assert!(!is_cut(text.as_bytes()));
        }
        assert!(!is_cut(b"") && !is_cut(b"ab") && !is_cut(b"a\xff"));
    }
}
