//! The continuation of texts in the terms of no API: the job of prompts that are not a conversation.

use std::sync::Arc;

use tern::engine::Request;
use tern::{CompiledConstraint, Reading};

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
}

impl TextRequest<'_> {
    /// Compiles the constraint and makes `n` requests per prompt.
    pub(crate) fn job(self, encoder: &Encoder<'_>) -> Result<Job> {
        let TextRequest { prompts, options, grammar } = self;
        let served = encoder.served;
        encoder.cancel.check()?;
        let constraint = grammar.map(|requested| requested.compile(served, None)).transpose()?;
        let mut requests = Vec::with_capacity(prompts.len() * options.n);
        for prompt in prompts {
            let max_tokens = served.model.max_tokens(prompt.len(), options.max_tokens)?;
            requests.extend((0..options.n).map(|choice| Request {
                prompt: prompt.to_vec(),
                max_tokens,
                sampling: options.sampling(choice),
                end_tokens: Arc::clone(&options.end_tokens),
                priority: options.priority,
                constraint: constraint.as_ref().map(CompiledConstraint::shared),
                pooling: None,
            }));
        }
        let (n, token_ids) = (options.n, options.token_ids);
        let reading = Reading { stops: options.stops, ..Reading::default() };
        Ok(Job { requests, n, reading, token_ids })
    }
}
