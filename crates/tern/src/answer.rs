//! One text as it is generated: tokens in, pieces of an answer out.

use std::sync::Arc;

use tern_engine::{Finish, Sampled};
use tern_text::{AnswerParser, Decoder, Markup, Part, StopError, Tokenizer, ToolSchemas};

use crate::ToolCall;

/// How a text is read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Strings that end the text; they are no part of it.
    pub stops: Vec<String>,
    /// The text is a new answer, not the continuation of the prompt.
    pub is_answer: bool,
    /// How reasoning and calls are marked in it, if they are to be separated.
    pub chat: Option<ChatReading>,
}

/// How an answer in a chat is separated into reasoning, content and tool calls.
#[derive(Clone, Debug)]
pub struct ChatReading {
    /// How they are marked.
    pub markup: Markup,
    /// The end of the prompt, which may open reasoning.
    pub prompt_tail: String,
    /// The tools that may be called; without them calls are content.
    pub tools: Option<Arc<ToolSchemas>>,
    /// Whether more than one call may follow.
    pub many_calls: bool,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// `max_tokens` tokens were generated.
    Length,
    /// The model called tools.
    ToolCalls,
}

impl FinishReason {
    /// As the OpenAI API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }
}

/// What one or more tokens add to a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// More of the reasoning, the content or the calls.
    pub parts: Vec<Part>,
    /// The tokens since the last delta, with their log-probabilities if requested.
    pub tokens: Vec<Sampled>,
    /// Why the text ends here.
    pub finish: Option<FinishReason>,
    /// The index of the stop string that ended it, if one did.
    pub stop: Option<usize>,
}

impl Delta {
    /// The content that it adds: no reasoning, no calls.
    pub fn text(&self) -> String {
        let content = |part: &Part| match part {
            Part::Content(text) => Some(text.clone()),
            _ => None,
        };
        self.parts.iter().filter_map(content).collect()
    }
}

/// Reads the tokens of one text.
pub struct AnswerReader {
    decoder: Decoder,
    parser: Option<AnswerParser>,
    many_calls: bool,
    calls: usize,
    in_reasoning: bool,
    /// Tokens that no delta has reported.
    pending: Vec<Sampled>,
    tokens: usize,
    reasoning_tokens: usize,
}

impl AnswerReader {
    /// A text that begins.
    pub fn new(tokenizer: &Arc<Tokenizer>, reading: &Reading) -> Result<AnswerReader, StopError> {
        let mut decoder = Decoder::new(Arc::clone(tokenizer), reading.stops.clone())?;
        if reading.is_answer {
            decoder = decoder.at_start_of_text();
        }
        if let Some(chat) = &reading.chat {
            decoder = decoder.showing(chat.markup.texts(chat.tools.is_some()));
        }
        let parser =
            |chat: &ChatReading| AnswerParser::new(&chat.markup, &chat.prompt_tail, chat.tools.clone());
        Ok(AnswerReader {
            decoder,
            parser: reading.chat.as_ref().map(parser),
            many_calls: reading.chat.as_ref().is_none_or(|chat| chat.many_calls),
            calls: 0,
            in_reasoning: false,
            pending: vec![],
            tokens: 0,
            reasoning_tokens: 0,
        })
    }

    /// Takes a token; the text may end with it. Nothing is returned while only half of a character or of a
    /// marker is known, unless the token has a log-probability to report.
    pub fn token(&mut self, sampled: Sampled) -> Option<Delta> {
        self.tokens += 1;
        let passed = self.decoder.push(sampled.id);
        let has_logprob = sampled.logprob.is_some();
        self.pending.push(sampled);
        let parts = self.parse(&passed.text, passed.stop.is_some());
        // a token without parts is markup, or the half of a character
        self.in_reasoning = parts.last().map_or(self.in_reasoning, |part| matches!(part, Part::Reasoning(_)));
        self.reasoning_tokens += usize::from(self.in_reasoning);
        let mut delta = Delta { parts, ..Delta::default() };
        let dropped = self.drop_further_calls(&mut delta);
        if passed.stop.is_some() || dropped {
            delta.finish = Some(self.reason(FinishReason::Stop));
            delta.stop = passed.stop;
        }
        let has_news = has_logprob || delta.finish.is_some() || !delta.parts.is_empty();
        has_news.then(|| Delta { tokens: std::mem::take(&mut self.pending), ..delta })
    }

    /// Takes the end; `None` if the engine was shut down.
    pub fn done(&mut self, finish: Finish) -> Option<Delta> {
        let reason = match finish {
            Finish::Stop(_) | Finish::Complete => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::Cancelled => return None,
        };
        let rest = self.decoder.finish();
        let tokens = std::mem::take(&mut self.pending);
        let mut delta = Delta { parts: self.parse(&rest, true), tokens, ..Delta::default() };
        self.drop_further_calls(&mut delta);
        delta.finish = Some(self.reason(reason));
        Some(delta)
    }

    /// Tokens that were generated.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens of reasoning among them.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
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

    /// If only one call is allowed, all that follows it is dropped; returns whether something was.
    fn drop_further_calls(&self, delta: &mut Delta) -> bool {
        if self.many_calls || self.calls < 2 {
            return false;
        }
        let second = delta.parts.iter().position(|part| matches!(part, Part::CallBegin { index: 1.., .. }));
        delta.parts.truncate(second.unwrap_or(0));
        true
    }

    fn reason(&self, reason: FinishReason) -> FinishReason {
        let called = reason == FinishReason::Stop && self.calls > 0;
        if called { FinishReason::ToolCalls } else { reason }
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Its content.
    pub text: String,
    /// The reasoning before it, if the model marks it.
    pub reasoning: String,
    /// The tools that the model called.
    pub tool_calls: Vec<ToolCall>,
    /// Its tokens, with their log-probabilities if requested.
    pub tokens: Vec<Sampled>,
    /// Why it ended; none while it has not.
    pub finish: Option<FinishReason>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens that were guessed, and computed with others in one step.
    pub drafted_tokens: usize,
    /// Those of them that were right.
    pub accepted_tokens: usize,
}

impl Answer {
    /// Appends what a delta adds.
    pub fn push(&mut self, delta: Delta) {
        for part in delta.parts {
            match part {
                Part::Content(text) => self.text.push_str(&text),
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::CallBegin { name, .. } => {
                    self.tool_calls.push(ToolCall { name, ..ToolCall::default() });
                }
                Part::CallArguments { text, .. } => {
                    // the arguments of a call follow its beginning
                    if let Some(call) = self.tool_calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        self.tokens.extend(delta.tokens);
        self.finish = delta.finish.or(self.finish);
        if self.finish.is_some() {
            for call in &mut self.tool_calls {
                *call = ToolCall::new(std::mem::take(&mut call.name), std::mem::take(&mut call.arguments));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_sum_of_its_deltas() {
        let parts = vec![
            Part::Reasoning("Hm".into()),
            Part::Content("Well, ".into()),
            Part::Content("yes".into()),
            Part::CallBegin { index: 0, name: "f".into() },
            Part::CallArguments { index: 0, text: "{\"x\":".into() },
            Part::CallArguments { index: 0, text: "1}".into() },
        ];
        let mut answer = Answer::default();
        for part in parts {
            answer.push(Delta { parts: vec![part], ..Delta::default() });
        }
        answer.push(Delta { finish: Some(FinishReason::ToolCalls), ..Delta::default() });
        assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("Well, yes", "Hm"));
        assert_eq!(answer.tool_calls, [ToolCall::new("f", "{\"x\":1}")]);
        assert_eq!(answer.finish, Some(FinishReason::ToolCalls));
    }
}
