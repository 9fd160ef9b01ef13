//! What a token adds to a choice, in the API's terms.

use serde::Serialize;
use serde_json::Value;
use tern::engine::Sampled;
use tern::text::{Part, Tokenizer};

/// A piece of one choice.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) parts: Vec<Part>,
    pub(crate) logprobs: Option<TokenLogprob>,
    /// The log-probabilities of the prompt, if requested; once, when they are known.
    pub(crate) prompt_logprobs: Option<Vec<Value>>,
    /// The tokens since the last delta, if requested.
    pub(crate) token_ids: Option<Vec<u32>>,
    /// The finish reason, if the choice has ended.
    pub(crate) finish: Option<&'static str>,
    /// The index of the stop string that ended it.
    pub(crate) stop: Option<usize>,
}

/// What is reported of a choice's tokens.
pub(crate) struct Report<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Log-probabilities, with this many most probable tokens.
    pub(crate) logprobs: Option<usize>,
    /// Their ids.
    pub(crate) token_ids: bool,
}

/// A token with its log-probability and those of the most probable ones.
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

impl Delta {
    pub(crate) fn new(delta: tern::Delta, report: &Report<'_>) -> Delta {
        let logprobs =
            |top| delta.tokens.iter().find_map(|token| TokenLogprob::new(token, top, report.tokenizer));
        Delta {
            logprobs: report.logprobs.and_then(logprobs),
            prompt_logprobs: None,
            token_ids: report.token_ids.then(|| delta.tokens.iter().map(|token| token.id).collect()),
            parts: delta.parts,
            stop: delta.stop,
            finish: delta.finish.map(tern::FinishReason::as_str),
        }
    }
}

impl TokenLogprob {
    fn new(sampled: &Sampled, top: usize, tokenizer: &Tokenizer) -> Option<TokenLogprob> {
        let token = Logprob::new(sampled.id, sampled.logprob?, tokenizer);
        let top = sampled.top.iter().take(top).map(|&(id, logprob)| Logprob::new(id, logprob, tokenizer));
        Some(TokenLogprob { token, top_logprobs: top.collect() })
    }
}

impl Logprob {
    fn new(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Logprob {
        let bytes = tokenizer.token_bytes(id, true).to_vec();
        let token = String::from_utf8_lossy(&bytes).into_owned();
        // JSON has no infinity; OpenAI uses -9999
        Logprob { token, logprob: logprob.max(-9999.0), bytes }
    }
}
