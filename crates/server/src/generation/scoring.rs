//! The log-probabilities of prompts: what is requested of them, and how they are collected.

use serde_json::{Map, Value, json};
use tern::engine::Sampled;
use tern::text::Tokenizer;

use crate::Config;
use crate::http::error::Result;
use crate::request::json::decimal;
use crate::request::params::Params;

/// What is reported of the log-probabilities of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scoring {
    /// They are part of the text's, as is the prompt: `echo` with `logprobs`.
    pub(crate) echoed: bool,
    /// `prompt_logprobs`: they are reported separately, with this many most probable tokens.
    pub(crate) prompt_logprobs: Option<usize>,
}

/// The prompt of one choice as its log-probabilities become known.
pub(crate) struct PromptScores {
    scoring: Scoring,
    /// Tokens that are not known yet.
    left: usize,
    positions: Vec<Value>,
}

impl Scoring {
    /// `prompt_logprobs`, in vLLM's meaning.
    pub(crate) fn take_prompt_logprobs(params: &mut Params, config: &Config) -> Result<Option<usize>> {
        let top = params.integer("prompt_logprobs", 0, config.max_top_logprobs as i64)?;
        Ok(top.map(|top| top as usize))
    }

    pub(crate) fn is_on(self) -> bool {
        self.echoed || self.prompt_logprobs.is_some()
    }
}

impl PromptScores {
    /// The scores of a prompt, of which `scored` tokens are generated.
    pub(crate) fn new(scoring: Scoring, scored: usize) -> PromptScores {
        PromptScores { scoring, left: scored, positions: vec![Value::Null] }
    }

    /// Takes a generated token; whether it is part of the text.
    pub(crate) fn take(&mut self, sampled: &Sampled, tokenizer: &Tokenizer) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return true };
        self.left = left;
        if let Some(top) = self.scoring.prompt_logprobs {
            self.positions.push(position(sampled, top, tokenizer));
        }
        self.scoring.echoed
    }

    /// The log-probabilities of the whole prompt, once they are known; `null` for its first token.
    pub(crate) fn complete(&mut self) -> Option<Vec<Value>> {
        let known = self.left == 0 && self.scoring.prompt_logprobs.is_some();
        known.then(|| std::mem::take(&mut self.positions)).filter(|positions| !positions.is_empty())
    }
}

/// One position in vLLM's shape: the most probable tokens and the prompt's own, by id.
fn position(sampled: &Sampled, top: usize, tokenizer: &Tokenizer) -> Value {
    let entry = |id: u32, logprob: f32, rank: Option<u32>| {
        let text = String::from_utf8_lossy(tokenizer.token_bytes(id, true)).into_owned();
        // JSON has no infinity; OpenAI uses -9999
        let entry = json!({"logprob": decimal(logprob.max(-9999.0)), "rank": rank, "decoded_token": text});
        (id.to_string(), entry)
    };
    let own = sampled.logprob.map(|logprob| entry(sampled.id, logprob, sampled.rank));
    let best = (1..).zip(sampled.top.iter().take(top)).map(|(rank, &(id, x))| entry(id, x, Some(rank)));
    // the prompt's own first; of tokens that are equally probable its rank is the best one
    let mut tokens: Map<String, Value> = own.into_iter().collect();
    for (id, entry) in best {
        tokens.entry(id).or_insert(entry);
    }
    tokens.into()
}
