//! The tokens of a request, as replies report them.

use serde::Serialize;

/// Tokens of a request, in OpenAI's shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

/// Details of the prompt's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

/// Details of the generated tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: usize,
    /// Guessed tokens that were right.
    pub(crate) accepted_prediction_tokens: usize,
    /// Guessed tokens that were not.
    pub(crate) rejected_prediction_tokens: usize,
}
