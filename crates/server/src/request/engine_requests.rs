//! The requests of the engine that answer a prompt.
//!
//! If a prompt is scored, all its tokens but the first are generated, and none of them is free.

use std::sync::Arc;

use tern::engine::Request;
use tern::{CompiledConstraint, TokenRules};

use crate::http::error::Result;
use crate::models::model::ServedModel;
use crate::request::options::Options;

/// The engine's requests of one prompt, one per choice.
pub(crate) struct PromptRequests {
    pub(crate) requests: Vec<Request>,
    /// Tokens of the prompt that each generates.
    pub(crate) scored: usize,
}

impl Options {
    /// The requests of a prompt.
    pub(crate) fn requests(
        &self,
        served: &ServedModel,
        prompt: &[u32],
        constraint: Option<&CompiledConstraint>,
    ) -> Result<PromptRequests> {
        let max_tokens = served.model.max_tokens(prompt.len(), self.max_tokens)?;
        let given = if self.scoring.is_on() { prompt.len().min(1) } else { prompt.len() };
        let (given, scored) = prompt.split_at(given);
        let rules = TokenRules { forced: scored.into(), ..self.rules.clone() };
        // an end token in the prompt must not end it
        let has_end = scored.iter().any(|token| self.end_tokens.contains(token));
        let end_tokens: Arc<[u32]> = if has_end { [].into() } else { Arc::clone(&self.end_tokens) };
        let request = |choice| {
            let mut sampling = self.sampling(choice);
            sampling.logprobs = sampling.logprobs.max(self.scoring.prompt_logprobs);
            Request {
                sampling,
                end_tokens: Arc::clone(&end_tokens),
                priority: self.priority,
                penalty_window: self.penalty_window,
                constraint: served.model.constrained(&rules, constraint),
                scored: scored.len(),
                adapters: self.adapters.clone(),
                drafts: self.drafts,
                ..Request::new(given.to_vec(), max_tokens + scored.len())
            }
        };
        Ok(PromptRequests { requests: (0..self.n).map(request).collect(), scored: scored.len() })
    }
}
