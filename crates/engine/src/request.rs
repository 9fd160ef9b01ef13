//! What is asked of the engine, and what it answers.

use std::sync::Arc;

use tern_graph::Sampled;

use crate::{EngineError, Guide, Sampling};

/// Names a request within one engine.
pub type RequestId = u64;

/// Tokens to continue, and how; or tokens to make a vector of.
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
    /// Lower goes first; equals go in order of arrival.
    pub priority: i32,
    /// Rules that the text must follow.
    pub guide: Option<Guide>,
    /// Read the prompt and give its hidden state: nothing is generated.
    pub pooling: Option<Pooling>,
}

/// How the hidden states of a prompt's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The last one.
    Last,
}

impl Request {
    /// A greedy continuation of exactly `max_tokens`.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Request {
        Request {
            prompt,
            max_tokens,
            sampling: Sampling::default(),
            end_tokens: Arc::new([]),
            priority: 0,
            guide: None,
            pooling: None,
        }
    }

    /// A prompt's vector, which comes as [`Event::Embedding`].
    pub fn embed(prompt: Vec<u32>, pooling: Pooling) -> Request {
        Request { pooling: Some(pooling), ..Request::new(prompt, 1) }
    }
}

/// What happened to a request: at most one `Started`, any number of tokens, then exactly one of the other three.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request has a seat; this many tokens of its prompt were in the cache.
    Started {
        /// Tokens that need not be computed.
        cached: usize,
    },
    /// The next token of the text.
    Token(Sampled),
    /// The text is complete.
    Done(Finish),
    /// The vector that was asked for.
    Embedding(Vec<f32>),
    /// The text breaks off here.
    Failed(EngineError),
}

impl Event {
    /// Nothing comes after it.
    pub fn is_last(&self) -> bool {
        !matches!(self, Event::Started { .. } | Event::Token(_))
    }
}

/// Why a text is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model sampled this end token. It is no part of the text: no [`Event::Token`] carries it.
    Stop(u32),
    /// The rules of the request allow nothing more.
    Complete,
    /// `max_tokens` tokens were generated.
    Length,
    /// The engine was shut down.
    Cancelled,
}
