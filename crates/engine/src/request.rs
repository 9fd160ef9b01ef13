//! What is asked of the engine, and what it answers.

use std::sync::Arc;

use tern_graph::Sampled;

use crate::{EngineError, Sampling};

/// Names a request within one engine.
pub type RequestId = u64;

/// Tokens to continue, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// Generate this many at most; at least one.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The model's end-of-generation tokens: sampling one ends the text. Empty goes on to `max_tokens`.
    pub end_tokens: Arc<[u32]>,
}

impl Request {
    /// A greedy continuation of exactly `max_tokens`.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Request {
        Request { prompt, max_tokens, sampling: Sampling::default(), end_tokens: Arc::new([]) }
    }
}

/// What happened to a request: any number of tokens, then exactly one `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next token of the text.
    Token(Sampled),
    /// The text is complete.
    Done(Finish),
    /// The text breaks off here.
    Failed(EngineError),
}

/// Why a text is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model sampled this end token. It is no part of the text: no [`Event::Token`] carries it.
    Stop(u32),
    /// `max_tokens` tokens were generated.
    Length,
    /// The engine was shut down.
    Cancelled,
}
