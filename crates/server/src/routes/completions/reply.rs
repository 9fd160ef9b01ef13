//! Completions in OpenAI's shape, which is the same whole and in chunks.

use serde::Serialize;
use serde_json::{Map, Value};
use tern::text::Part;

use super::super::deliver::Shape;
use super::super::reply_header::{ReplyHeader, ReplyId};
use crate::generation::delta::{Delta, TokenLogprob};
use crate::generation::usage::Usage;
use crate::http::frames::Frames;
use crate::request::json::decimal;
use crate::request::options::Streaming;

/// A completion under construction.
pub(in crate::routes) struct Reply {
    id: ReplyId,
    logprobs: bool,
    pub(super) streaming: Streaming,
    /// Per choice, taken by its first piece.
    echoes: Vec<PromptEcho>,
    choices: Vec<Choice>,
    /// Per choice, the characters of the tokens whose log-probabilities were sent.
    offsets: Vec<usize>,
}

/// What a choice repeats of its prompt.
#[derive(Clone, Default)]
pub(super) struct PromptEcho {
    /// Empty without `echo`.
    pub(super) text: String,
    /// The first token of a prompt whose log-probabilities are reported: it has none.
    pub(super) scored: Option<String>,
    pub(super) token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct Completion<'a> {
    #[serde(flatten)]
    header: ReplyHeader<'a>,
    choices: Vec<Choice>,
    /// Absent, null or set.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Clone, Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Value>>,
}

#[derive(Clone, Default, Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl Logprobs {
    fn append(&mut self, more: Logprobs) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}

impl Reply {
    pub(super) fn new(model: String, logprobs: bool, echoes: Vec<PromptEcho>) -> Reply {
        let choice =
            |index| Choice { index, logprobs: logprobs.then(Logprobs::default), ..Choice::default() };
        let choices = (0..echoes.len()).map(choice).collect();
        let offsets = vec![0; echoes.len()];
        let (id, streaming) = (ReplyId::new("cmpl-", model), Streaming::default());
        Reply { id, logprobs, streaming, echoes, choices, offsets }
    }

    /// A piece of a choice; the first one includes the prompt if requested.
    fn choice(&mut self, at: usize, delta: Delta) -> Choice {
        let PromptEcho { mut text, scored, token_ids: prompt_token_ids } =
            std::mem::take(&mut self.echoes[at]);
        if scored.is_some() {
            self.offsets[at] = text.chars().count();
        }
        for part in delta.parts {
            if let Part::Content(more) = part {
                text.push_str(&more);
            }
        }
        let mut logprobs = scored.map(|first| Logprobs {
            tokens: vec![first],
            token_logprobs: vec![None],
            top_logprobs: vec![None],
            text_offset: vec![0],
        });
        if let Some(token) = delta.logprobs.filter(|_| self.logprobs) {
            let more = self.logprobs(at, token);
            match &mut logprobs {
                Some(logprobs) => logprobs.append(more),
                None => logprobs = Some(more),
            }
        }
        Choice {
            index: at,
            text,
            logprobs,
            finish_reason: delta.finish,
            token_ids: delta.token_ids,
            prompt_token_ids,
            prompt_logprobs: delta.prompt_logprobs,
        }
    }

    fn logprobs(&mut self, at: usize, token: TokenLogprob) -> Logprobs {
        let offset = self.offsets[at];
        self.offsets[at] += token.token.chars();
        let mut top = Map::new();
        for best in token.top_logprobs.into_iter().chain([token.token.clone()]) {
            top.insert(best.token, decimal(best.logprob));
        }
        Logprobs {
            tokens: vec![token.token.token],
            token_logprobs: vec![Some(token.token.logprob)],
            top_logprobs: vec![Some(top)],
            text_offset: vec![offset],
        }
    }

    fn completion(&self, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> Completion<'_> {
        Completion { header: self.id.header("text_completion"), choices, usage }
    }
}

impl Shape for Reply {
    fn add(&mut self, at: usize, delta: Delta) {
        let piece = self.choice(at, delta);
        let choice = &mut self.choices[at];
        choice.text.push_str(&piece.text);
        choice.finish_reason = piece.finish_reason;
        if let Some(ids) = piece.token_ids {
            choice.token_ids.get_or_insert_default().extend(ids);
        }
        choice.prompt_token_ids = choice.prompt_token_ids.take().or(piece.prompt_token_ids);
        choice.prompt_logprobs = choice.prompt_logprobs.take().or(piece.prompt_logprobs);
        if let (Some(all), Some(more)) = (&mut choice.logprobs, piece.logprobs) {
            all.append(more);
        }
    }

    fn whole(&mut self, usage: Usage) -> impl Serialize {
        let choices = std::mem::take(&mut self.choices);
        self.completion(choices, Some(Some(usage)))
    }

    fn piece(&mut self, at: usize, delta: Delta, usage: Usage, out: &mut Frames) {
        let choice = self.choice(at, delta);
        out.data(&self.completion(vec![choice], self.streaming.usage_of_piece(usage)));
    }

    fn end(&mut self, usage: Usage, out: &mut Frames) {
        if self.streaming.usage {
            out.data(&self.completion(vec![], Some(Some(usage))));
        }
        out.done();
    }
}
