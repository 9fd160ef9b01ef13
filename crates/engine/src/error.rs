//! What can go wrong, each in one sentence, and whose fault it is.

use tern_graph::{BackendError, SamplingError};

/// Why a request was refused or failed, or an engine could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A number outside its range.
    #[error("{name}: want {want}, got {got}")]
    Range {
        /// The field.
        name: &'static str,
        /// What it may be.
        want: String,
        /// What it is.
        got: String,
    },
    /// A token the model does not have.
    #[error("{name}: token id {id} is outside the vocabulary of {vocab}")]
    Token {
        /// The field it stands in.
        name: &'static str,
        /// The token.
        id: u32,
        /// How many tokens there are.
        vocab: usize,
    },
    /// Longer than the context.
    #[error("{prompt} prompt tokens and {max_tokens} to generate do not fit the context of {max_context}")]
    Context {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens asked for.
        max_tokens: usize,
        /// Tokens a sequence may have.
        max_context: usize,
    },
    /// More KV than there is, even alone.
    #[error("the request needs {need} pages of {page_len} tokens, there are {pages}")]
    Pages {
        /// Pages the request fills.
        need: usize,
        /// Tokens a page.
        page_len: usize,
        /// Pages in all.
        pages: usize,
    },
    /// No room to wait.
    #[error(
        "the queue is full: {running} running and {waiting} waiting, at most {max_seqs} and {max_waiting}"
    )]
    QueueFull {
        /// Sequences that run.
        running: usize,
        /// Sequences that wait.
        waiting: usize,
        /// Sequences that may run.
        max_seqs: usize,
        /// Sequences that may wait.
        max_waiting: usize,
    },
    /// An id is given twice.
    #[error("request {0} is already here")]
    Duplicate(u64),
    /// A weight or a size that does not fit the graph.
    #[error("{0}")]
    Load(String),
    /// A step failed, in the runner's words.
    #[error("{0}")]
    Runner(String),
    /// The device lost its context, in its words, so the engine takes no more work.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// The rules of the request could not be followed, in their words.
    #[error("the rules of the answer: {0}")]
    Rules(String),
    /// The model is broken, or its arithmetic overflowed.
    #[error("the model produced values that are not finite (NaN or infinity) at position {position}")]
    NotFinite {
        /// Of the token, counted from 0 at the start of the prompt.
        position: usize,
    },
    /// The engine broke its own rules, so it takes no more work.
    #[error("the engine stopped: {0}")]
    Broken(String),
    /// A panic left the device in an unknown state, so the engine takes no more work.
    #[error("the engine stopped after a panic: {0}")]
    Panicked(String),
    /// Asked to.
    #[error("the engine was shut down")]
    Stopped,
}

/// Whose fault an error is: what a server turns into a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request can never be served as it is.
    Request,
    /// The same request may be served later.
    Busy,
    /// Neither the request nor the load: the model, the device or the engine.
    Engine,
}

impl EngineError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            EngineError::EmptyPrompt
            | EngineError::Range { .. }
            | EngineError::Token { .. }
            | EngineError::Context { .. }
            | EngineError::Pages { .. }
            | EngineError::Rules(_) => Fault::Request,
            EngineError::QueueFull { .. } => Fault::Busy,
            EngineError::Duplicate(_)
            | EngineError::Load(_)
            | EngineError::Runner(_)
            | EngineError::DeviceLost(_)
            | EngineError::NotFinite { .. }
            | EngineError::Broken(_)
            | EngineError::Panicked(_)
            | EngineError::Stopped => Fault::Engine,
        }
    }

    /// Whether nothing can be computed after it, by anyone.
    pub(crate) fn ends_engine(&self) -> bool {
        matches!(self, EngineError::DeviceLost(_))
    }

    pub(crate) fn range(name: &'static str, want: impl Into<String>, got: impl ToString) -> EngineError {
        EngineError::Range { name, want: want.into(), got: got.to_string() }
    }
}

impl From<SamplingError> for EngineError {
    fn from(SamplingError { name, want, got }: SamplingError) -> EngineError {
        EngineError::range(name, want, got)
    }
}

/// A device's words are the step's words.
impl From<BackendError> for EngineError {
    fn from(e: BackendError) -> EngineError {
        match e {
            BackendError::DeviceLost(words) => EngineError::DeviceLost(words),
            other => EngineError::Runner(other.to_string()),
        }
    }
}
