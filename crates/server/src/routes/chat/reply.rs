//! The assistant's message in OpenAI's shape: whole, or in chunks.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;
use tern::text::Part;

use super::super::deliver::Shape;
use super::super::reply_header::{ReplyHeader, ReplyId};
use crate::generation::delta::{Delta, TokenLogprob};
use crate::generation::usage::Usage;
use crate::http::frames::Frames;
use crate::ids::call_id;
use crate::request::options::Streaming;

/// A chat completion under construction.
pub(in crate::routes) struct Reply {
    id: ReplyId,
    contents: ReplyContents,
    /// The prompt's tokens, if requested and not sent yet.
    prompt_token_ids: Option<Vec<u32>>,
    /// Log-probabilities of the prompt's tokens, if requested.
    prompt_logprobs: Option<Vec<Value>>,
    choices: Vec<Choice>,
    /// Choices whose first chunk was sent.
    begun: BTreeSet<usize>,
}

/// What a reply contains besides the text.
#[derive(Clone, Copy)]
pub(super) struct ReplyContents {
    pub(super) logprobs: bool,
    pub(super) streaming: Streaming,
}

#[derive(Serialize)]
struct Completion<'a> {
    #[serde(flatten)]
    header: ReplyHeader<'a>,
    choices: &'a [Choice],
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a [Value]>,
}

#[derive(Default, Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Default, Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(Default, Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Default, Serialize)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Default, Serialize)]
struct Logprobs {
    content: Vec<TokenLogprob>,
    refusal: Option<Vec<TokenLogprob>>,
}

/// A chunk of a streamed reply. `usage` is absent, null or set.
#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    header: ReplyHeader<'a>,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: ChunkDelta,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Default, Serialize)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

#[derive(Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl Reply {
    pub(super) fn new(model: String, contents: ReplyContents, prompt_token_ids: Option<Vec<u32>>) -> Reply {
        Reply {
            id: ReplyId::new("chatcmpl-", model),
            contents,
            prompt_token_ids,
            prompt_logprobs: None,
            choices: vec![],
            begun: BTreeSet::new(),
        }
    }

    fn choice(&mut self, at: usize) -> &mut Choice {
        while self.choices.len() <= at {
            let index = self.choices.len();
            let logprobs = self.contents.logprobs.then(Logprobs::default);
            let message = Message { role: "assistant", ..Message::default() };
            self.choices.push(Choice { index, message, logprobs, ..Choice::default() });
        }
        &mut self.choices[at]
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Option<Usage>>) -> Chunk<'_> {
        Chunk { header: self.id.header("chat.completion.chunk"), choices, usage, prompt_token_ids: None }
    }
}

impl Shape for Reply {
    fn add(&mut self, at: usize, delta: Delta) {
        self.prompt_logprobs = self.prompt_logprobs.take().or(delta.prompt_logprobs);
        let choice = self.choice(at);
        let message = &mut choice.message;
        for part in delta.parts {
            match part {
                Part::Content(text) => message.content.get_or_insert_default().push_str(&text),
                Part::Reasoning(text) => message.reasoning_content.get_or_insert_default().push_str(&text),
                Part::CallBegin { name, .. } => message.tool_calls.push(Call {
                    id: call_id(),
                    r#type: "function",
                    function: Function { name, arguments: String::new() },
                }),
                Part::CallArguments { index, text } => {
                    if let Some(call) = message.tool_calls.get_mut(index) {
                        call.function.arguments.push_str(&text);
                    }
                }
            }
        }
        if let Some(logprobs) = &mut choice.logprobs {
            logprobs.content.extend(delta.logprobs);
        }
        if let Some(ids) = delta.token_ids {
            choice.token_ids.get_or_insert_default().extend(ids);
        }
        choice.finish_reason = delta.finish;
    }

    fn whole(&mut self, usage: Usage) -> impl Serialize {
        for choice in &mut self.choices {
            let message = &mut choice.message;
            // content is null only in a message with calls and no text
            if message.tool_calls.is_empty() {
                message.content.get_or_insert_default();
            }
        }
        Completion {
            header: self.id.header("chat.completion"),
            choices: &self.choices,
            usage,
            prompt_token_ids: self.prompt_token_ids.as_deref(),
            prompt_logprobs: self.prompt_logprobs.as_deref(),
        }
    }

    /// The first chunk has the role, the last one the finish reason.
    fn piece(&mut self, at: usize, delta: Delta, usage: Usage, out: &mut Frames) {
        let ReplyContents { logprobs, streaming } = self.contents;
        let usage = streaming.usage_of_piece(usage);
        let mut choices = Vec::new();
        let mut token_ids = delta.token_ids;
        let mut push = |delta, logprobs, finish_reason, token_ids| {
            choices.push(ChunkChoice { index: at, delta, logprobs, finish_reason, token_ids });
        };
        if self.begun.insert(at) {
            let role =
                ChunkDelta { role: Some("assistant"), content: Some(String::new()), ..ChunkDelta::default() };
            push(role, None, None, None);
        }
        let token = delta.logprobs.filter(|_| logprobs);
        if !delta.parts.is_empty() || token.is_some() {
            let logprobs = token.map(|token| Logprobs { content: vec![token], refusal: None });
            push(chunk_delta(delta.parts), logprobs, None, token_ids.take());
        }
        if delta.finish.is_some() {
            push(ChunkDelta::default(), None, delta.finish, token_ids.take());
        }
        let mut prompt = self.prompt_token_ids.take();
        for choice in choices {
            out.data(&Chunk { prompt_token_ids: prompt.take(), ..self.chunk(vec![choice], usage) });
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Frames) {
        if self.contents.streaming.usage {
            out.data(&self.chunk(vec![], Some(Some(usage))));
        }
        out.done();
    }
}

fn chunk_delta(parts: Vec<Part>) -> ChunkDelta {
    let mut delta = ChunkDelta::default();
    for part in parts {
        match part {
            Part::Content(text) => delta.content.get_or_insert_default().push_str(&text),
            Part::Reasoning(text) => delta.reasoning_content.get_or_insert_default().push_str(&text),
            Part::CallBegin { index, name } => delta.tool_calls.push(CallDelta {
                index,
                id: Some(call_id()),
                r#type: Some("function"),
                function: FunctionDelta { name: Some(name), arguments: String::new() },
            }),
            Part::CallArguments { index, text } => match delta.tool_calls.last_mut() {
                Some(call) if call.index == index => call.function.arguments.push_str(&text),
                _ => delta.tool_calls.push(CallDelta {
                    index,
                    id: None,
                    r#type: None,
                    function: FunctionDelta { name: None, arguments: text },
                }),
            },
        }
    }
    if delta.tool_calls.is_empty() && delta.reasoning_content.is_none() {
        delta.content.get_or_insert_default(); // a token without text yet carries its log-probability
    }
    delta
}
