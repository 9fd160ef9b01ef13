//! Requests to the engine, and its events.

use std::sync::Arc;

use tern_graph::{AdapterScales, Images, Sampled};

use crate::{EngineError, Pooling, Sampling, SharedConstraint};

/// Identifies a request within one engine.
pub type RequestId = u64;

/// Tokens to continue, and how; or tokens to embed.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// Maximum number of tokens to generate; at least one.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The model's end-of-generation tokens: sampling one ends the text. If empty,
    /// `max_tokens` are generated.
    pub end_tokens: Arc<[u32]>,
    /// Lower is scheduled first; requests of equal priority fairly between clients, then in order of arrival.
    pub priority: i32,
    /// Whose request it is; requests with the same number share what a client gets.
    pub client: u64,
    /// Number of last tokens that the penalties of the sampling parameters look at; without it all.
    pub penalty_window: Option<usize>,
    /// Which tokens may come next.
    pub constraint: Option<SharedConstraint>,
    /// The first tokens that are generated are a prompt of this length: they do not count
    /// as generated for sampling.
    pub scored: usize,
    /// Compute the hidden states of the prompt's tokens, pooled; nothing is generated.
    pub pooling: Option<Pooling>,
    /// The prompt is a pair of texts, and the second one begins with this token.
    pub second: Option<usize>,
    /// The adapters of the model that the text is computed with.
    pub adapters: AdapterScales,
    /// The rows of images that take the place of tokens of the prompt.
    pub images: Images,
    /// Tokens that a step may guess at most, to be computed with the last known one; 0 disables it. The
    /// text is the same as without, if the runner's results do not depend on the batch.
    pub drafts: usize,
    /// A text that the answer is expected to repeat, with changes: drafts are taken from it.
    pub predicted: Arc<[u32]>,
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
            client: 0,
            penalty_window: None,
            constraint: None,
            scored: 0,
            pooling: None,
            second: None,
            adapters: AdapterScales::NONE,
            images: Images::NONE,
            drafts: 0,
            predicted: Arc::new([]),
        }
    }

    /// An embedding of the prompt, delivered as [`Event::Embedding`].
    pub fn embed(prompt: Vec<u32>, pooling: Pooling) -> Request {
        Request { pooling: Some(pooling), ..Request::new(prompt, 1) }
    }
}

/// What happened to a request: at most one `Started`, any number of tokens and of `Drafted`, then exactly
/// one of the other three.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request is in its first step; this many tokens of its prompt were in the prefix cache.
    Started {
        /// Tokens that were not computed.
        cached: usize,
    },
    /// A step computed drafts; those that were accepted are the first of the tokens that follow.
    Drafted {
        /// Guessed tokens in the step.
        drafted: usize,
        /// Those of them that equal what was sampled.
        accepted: usize,
    },
    /// The next token of the text.
    Token(Sampled),
    /// The text is complete.
    Done(Finish),
    /// The requested embedding.
    Embedding(Vec<f32>),
    /// The text breaks off here.
    Failed(EngineError),
}

impl Event {
    /// Whether it is the last event of its request.
    pub fn is_last(&self) -> bool {
        !matches!(self, Event::Started { .. } | Event::Drafted { .. } | Event::Token(_))
    }
}

/// Why a text is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model sampled this end token. It is not part of the text: no [`Event::Token`] has it.
    Stop(u32),
    /// The constraint allows nothing more.
    Complete,
    /// `max_tokens` tokens were generated.
    Length,
    /// The engine was shut down.
    Cancelled,
}
