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
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// Log-probabilities, with this many most probable tokens.
    pub(crate) logprobs: Option<usize>,
    /// Their ids.
    pub(crate) token_ids: bool,
    pub(crate) token_names: TokenNames,
}

/// What log-probabilities call a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenNames {
    #[default]
    Texts,
    /// `token_id:N`, as in vLLM: several tokens may have the same text.
    Ids,
}

impl TokenNames {
    /// The name of a token with these bytes.
    pub(crate) fn name(self, id: u32, bytes: &[u8]) -> String {
        match self {
            TokenNames::Texts => String::from_utf8_lossy(bytes).into_owned(),
            TokenNames::Ids => format!("token_id:{id}"),
        }
    }
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
    pub(crate) fn new(delta: tern::Delta, report: Report, tokenizer: &Tokenizer) -> Delta {
        let names = Named { names: report.token_names, tokenizer };
        let logprobs = |top| delta.tokens.iter().find_map(|token| names.token(token, top));
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

/// Makes log-probabilities of tokens.
struct Named<'a> {
    names: TokenNames,
    tokenizer: &'a Tokenizer,
}

impl Named<'_> {
    fn token(&self, sampled: &Sampled, top: usize) -> Option<TokenLogprob> {
        let token = self.logprob(sampled.id, sampled.logprob?);
        let top = sampled.top.iter().take(top).map(|&(id, logprob)| self.logprob(id, logprob));
        Some(TokenLogprob { token, top_logprobs: top.collect() })
    }

    fn logprob(&self, id: u32, logprob: f32) -> Logprob {
        let bytes = self.tokenizer.token_bytes(id, true).to_vec();
        let token = self.names.name(id, &bytes);
        // JSON has no infinity; OpenAI uses -9999
        Logprob { token, logprob: logprob.max(-9999.0), bytes }
    }
}

impl Logprob {
    /// The number of characters of the token's text.
    pub(crate) fn chars(&self) -> usize {
        String::from_utf8_lossy(&self.bytes).chars().count()
    }
}
