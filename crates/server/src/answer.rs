//! One text on its way to the client: tokens in, pieces of an answer out.

use serde::Serialize;
use tern_engine::{Finish, Sampled};
use tern_text::{AnswerParser, Decoder, Markup, Part, StopError, Tokenizer};

/// What a text is read with.
pub(crate) struct Reading {
    pub(crate) stops: Vec<String>,
    /// Tokens are given by number beside their text.
    pub(crate) token_ids: bool,
    /// For chats: how the model marks reasoning and calls.
    pub(crate) chat: Option<ChatReading>,
}

/// How an answer in a chat is taken apart.
pub(crate) struct ChatReading {
    pub(crate) markup: Markup,
    /// The end of the prompt, which may be the beginning of reasoning.
    pub(crate) prompt_tail: String,
    pub(crate) wants_tools: bool,
    /// Whether more than one call may come.
    pub(crate) many_calls: bool,
}

/// A text in the making.
pub(crate) struct Answer<'a> {
    tokenizer: &'a Tokenizer,
    decoder: Decoder<'a>,
    parser: Option<AnswerParser>,
    many_calls: bool,
    calls: usize,
    thinking: bool,
    /// Tokens that no delta has told of, where they are wanted.
    untold: Option<Vec<u32>>,
    pub(crate) tokens: usize,
    pub(crate) reasoning_tokens: usize,
}

/// What a token adds.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) parts: Vec<Part>,
    pub(crate) logprobs: Option<TokenLogprob>,
    /// The tokens since the last delta, where they are wanted.
    pub(crate) token_ids: Option<Vec<u32>>,
    /// Why the text ends here.
    pub(crate) finish: Option<&'static str>,
}

/// A token with its log-probability and those of the best ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    pub(crate) token: Logprob,
    pub(crate) top_logprobs: Vec<Logprob>,
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Logprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

impl<'a> Answer<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, reading: &Reading) -> Result<Answer<'a>, StopError> {
        let mut decoder = Decoder::new(tokenizer, reading.stops.clone())?;
        if let Some(chat) = &reading.chat {
            decoder = decoder.at_start_of_text().showing(chat.markup.texts(chat.wants_tools));
        }
        let parser =
            |chat: &ChatReading| AnswerParser::new(&chat.markup, &chat.prompt_tail, chat.wants_tools);
        Ok(Answer {
            tokenizer,
            decoder,
            parser: reading.chat.as_ref().map(parser),
            many_calls: reading.chat.as_ref().is_none_or(|chat| chat.many_calls),
            calls: 0,
            thinking: false,
            untold: reading.token_ids.then(Vec::new),
            tokens: 0,
            reasoning_tokens: 0,
        })
    }

    /// Takes a token; the text may end with it.
    pub(crate) fn token(&mut self, sampled: &Sampled) -> Delta {
        self.tokens += 1;
        if let Some(untold) = &mut self.untold {
            untold.push(sampled.id);
        }
        let passed = self.decoder.push(sampled.id);
        let parts = self.parse(&passed.text, passed.stop.is_some());
        // a token without parts is markup, or the half of a character
        self.thinking = parts.last().map_or(self.thinking, |part| matches!(part, Part::Reasoning(_)));
        self.reasoning_tokens += usize::from(self.thinking);
        let mut delta = Delta { parts, logprobs: self.logprob(sampled), ..Delta::default() };
        if passed.stop.is_some() || self.drop_further_calls(&mut delta) {
            delta.finish = Some(self.reason("stop"));
        }
        delta
    }

    /// Takes the end; `None` where the text was ended from outside.
    pub(crate) fn done(&mut self, finish: Finish) -> Option<Delta> {
        let reason = match finish {
            Finish::Stop(_) | Finish::Complete => "stop",
            Finish::Length => "length",
            Finish::Cancelled => return None,
        };
        let rest = self.decoder.finish();
        let mut delta = Delta { parts: self.parse(&rest, true), ..Delta::default() };
        self.drop_further_calls(&mut delta);
        delta.finish = Some(self.reason(reason));
        Some(delta)
    }

    /// The tokens since this was last asked, where they are wanted.
    pub(crate) fn token_ids(&mut self) -> Option<Vec<u32>> {
        self.untold.as_mut().map(std::mem::take)
    }

    fn parse(&mut self, text: &str, end: bool) -> Vec<Part> {
        let parts = match &mut self.parser {
            Some(parser) => {
                let mut parts = parser.push(text);
                if end {
                    parts.extend(parser.finish());
                }
                parts
            }
            None if text.is_empty() => vec![],
            None => vec![Part::Content(text.to_owned())],
        };
        self.calls += parts.iter().filter(|part| matches!(part, Part::CallBegin { .. })).count();
        parts
    }

    /// Where only one call may come, all behind it is dropped; tells whether there was any.
    fn drop_further_calls(&self, delta: &mut Delta) -> bool {
        if self.many_calls || self.calls < 2 {
            return false;
        }
        let second = delta.parts.iter().position(|part| matches!(part, Part::CallBegin { index: 1.., .. }));
        delta.parts.truncate(second.unwrap_or(0));
        true
    }

    fn reason(&self, reason: &'static str) -> &'static str {
        if reason == "stop" && self.calls > 0 { "tool_calls" } else { reason }
    }

    fn logprob(&self, sampled: &Sampled) -> Option<TokenLogprob> {
        let token = self.named(sampled.id, sampled.logprob?);
        let top = sampled.top.iter().map(|&(id, logprob)| self.named(id, logprob));
        Some(TokenLogprob { token, top_logprobs: top.collect() })
    }

    fn named(&self, id: u32, logprob: f32) -> Logprob {
        let bytes = self.tokenizer.token_bytes(id, true).to_vec();
        let token = String::from_utf8_lossy(&bytes).into_owned();
        // JSON has no infinity; this is what OpenAI writes for it
        Logprob { token, logprob: logprob.max(-9999.0), bytes }
    }
}
