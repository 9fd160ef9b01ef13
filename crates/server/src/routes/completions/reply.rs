//! Continuations in OpenAI's shape, which is the same whole and in chunks.

use serde::Serialize;
use serde_json::{Map, Value};
use tern::text::Part;

use super::super::deliver::Shape;
use crate::FINGERPRINT;
use crate::chance;
use crate::delta::{Delta, TokenLogprob};
use crate::generation::Usage;
use crate::prompt::now;

/// Answers in the making.
pub(super) struct Reply {
    id: String,
    created: u64,
    model: String,
    logprobs: bool,
    /// What each text begins with, where that is wanted: its prompt as text, and as tokens.
    begins: Vec<(String, Option<Vec<u32>>)>,
    choices: Vec<Choice>,
    /// Characters of each text that were named with their tokens.
    offsets: Vec<usize>,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<Choice>,
    /// Absent, null or there.
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
}

#[derive(Clone, Default, Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

impl Reply {
    pub(super) fn new(model: String, logprobs: bool, begins: Vec<(String, Option<Vec<u32>>)>) -> Reply {
        let choice =
            |index| Choice { index, logprobs: logprobs.then(Logprobs::default), ..Choice::default() };
        let choices = (0..begins.len()).map(choice).collect();
        let offsets = vec![0; begins.len()];
        Reply { id: chance::id("cmpl-"), created: now(), model, logprobs, begins, choices, offsets }
    }

    /// A piece of a text; the first one brings the prompt along where that is wanted.
    fn piece(&mut self, at: usize, delta: Delta) -> Choice {
        let (mut text, prompt_token_ids) = std::mem::take(&mut self.begins[at]);
        for part in delta.parts {
            if let Part::Content(more) = part {
                text.push_str(&more);
            }
        }
        let logprobs = delta.logprobs.filter(|_| self.logprobs).map(|token| self.logprobs(at, token));
        let (finish_reason, token_ids) = (delta.finish, delta.token_ids);
        Choice { index: at, text, logprobs, finish_reason, token_ids, prompt_token_ids }
    }

    fn logprobs(&mut self, at: usize, token: TokenLogprob) -> Logprobs {
        let offset = self.offsets[at];
        self.offsets[at] += token.token.token.chars().count();
        let mut top = Map::new();
        for best in token.top_logprobs.into_iter().chain([token.token.clone()]) {
            // as short as the f32 it is
            let logprob: f64 = best.logprob.to_string().parse().unwrap_or(f64::from(best.logprob));
            top.insert(best.token, logprob.into());
        }
        Logprobs {
            tokens: vec![token.token.token],
            token_logprobs: vec![token.token.logprob],
            top_logprobs: vec![top],
            text_offset: vec![offset],
        }
    }

    fn of(&self, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> Completion<'_> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        }
    }
}

impl Shape for Reply {
    fn add(&mut self, at: usize, delta: Delta) {
        let piece = self.piece(at, delta);
        let choice = &mut self.choices[at];
        choice.text.push_str(&piece.text);
        choice.finish_reason = piece.finish_reason;
        if let Some(ids) = piece.token_ids {
            choice.token_ids.get_or_insert_default().extend(ids);
        }
        choice.prompt_token_ids = choice.prompt_token_ids.take().or(piece.prompt_token_ids);
        if let (Some(all), Some(more)) = (&mut choice.logprobs, piece.logprobs) {
            all.tokens.extend(more.tokens);
            all.token_logprobs.extend(more.token_logprobs);
            all.top_logprobs.extend(more.top_logprobs);
            all.text_offset.extend(more.text_offset);
        }
    }

    fn whole(&mut self, usage: Usage) -> impl Serialize {
        let choices = std::mem::take(&mut self.choices);
        self.of(choices, Some(Some(usage)))
    }

    fn chunks(
        &mut self,
        at: usize,
        delta: Delta,
        usage: Option<Option<Usage>>,
    ) -> Vec<impl Serialize + Send + Sync> {
        let piece = self.piece(at, delta);
        vec![self.of(vec![piece], usage)]
    }

    fn usage_chunk(&self, usage: Usage) -> impl Serialize + Send + Sync {
        self.of(vec![], Some(Some(usage)))
    }
}
