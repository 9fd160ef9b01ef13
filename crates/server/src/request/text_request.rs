//! The continuation of texts in the terms of no API: the job of prompts that are not a conversation.

use tern::Reading;

use crate::generation::Job;
use crate::http::error::Result;
use crate::request::constraint::RequestedGrammar;
use crate::request::encode::Encoder;
use crate::request::options::Options;

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
        let (mut requests, mut scored) = (Vec::with_capacity(prompts.len() * options.n), vec![]);
        for prompt in prompts {
            let of_prompt = options.requests(served, prompt, constraint.as_ref())?;
            scored.extend(std::iter::repeat_n(of_prompt.scored, options.n));
            requests.extend(of_prompt.requests);
        }
        let reading = Reading { stops: options.stops.clone(), ..Reading::default() };
        Ok(Job { requests, scored, ..Job::new(options, reading) })
    }
}
