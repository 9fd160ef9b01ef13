//! The continuation of texts in the terms of no API: the job of prompts that are not a conversation.

use std::sync::Arc;

use tern::engine::Request;
use tern::{Reading, TokenRules};

use crate::constraint::RequestedGrammar;
use crate::encode::Encoder;
use crate::error::Result;
use crate::generation::Job;
use crate::options::Options;

/// Validated prompts.
pub(crate) struct TextRequest<'a> {
    pub(crate) prompts: Vec<&'a [u32]>,
    pub(crate) options: Options,
    /// What the texts must follow.
    pub(crate) grammar: Option<RequestedGrammar>,
    /// Compute the log-probabilities of the prompts: all tokens but the first are generated, and none is free.
    pub(crate) scored: bool,
}

impl TextRequest<'_> {
    /// Compiles the constraint and makes `n` requests per prompt.
    pub(crate) fn job(self, encoder: &Encoder<'_>) -> Result<Job> {
        let TextRequest { prompts, options, grammar, scored } = self;
        let served = encoder.served;
        encoder.cancel.check()?;
        let constraint = grammar.map(|requested| requested.compile(served, None)).transpose()?;
        let (mut requests, mut forced) = (Vec::with_capacity(prompts.len() * options.n), vec![]);
        for prompt in prompts {
            let max_tokens = served.model.max_tokens(prompt.len(), options.max_tokens)?;
            let (given, scored) = prompt.split_at(if scored { prompt.len().min(1) } else { prompt.len() });
            let rules = TokenRules { forced: scored.into(), ..options.rules.clone() };
            // an end token in the prompt must not end it
            let has_end = scored.iter().any(|token| options.end_tokens.contains(token));
            let end_tokens: Arc<[u32]> = if has_end { [].into() } else { Arc::clone(&options.end_tokens) };
            forced.extend(std::iter::repeat_n(scored.len(), options.n));
            requests.extend((0..options.n).map(|choice| Request {
                prompt: given.to_vec(),
                max_tokens: max_tokens + scored.len(),
                sampling: options.sampling(choice),
                end_tokens: Arc::clone(&end_tokens),
                priority: options.priority,
                constraint: served.model.constrained(&rules, constraint.as_ref()),
                pooling: None,
            }));
        }
        let (n, token_ids) = (options.n, options.token_ids);
        let reading = Reading { stops: options.stops, ..Reading::default() };
        Ok(Job { requests, n, reading, token_ids, forced, user: options.user })
    }
}
