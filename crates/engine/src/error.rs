//! What can go wrong, each in one sentence, and whether the request, the load or the engine is the cause.

use tern_graph::{BackendError, SamplingError, WeightError};

/// Why a request was refused or failed, or an engine could not be started.
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
        /// Its range.
        want: String,
        /// Its value.
        got: String,
    },
    /// A token the model does not have.
    #[error("{name}: token id {id} is outside the vocabulary of {vocab}")]
    Token {
        /// The field that has it.
        name: &'static str,
        /// The token.
        id: u32,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// An adapter the model does not have.
    #[error("adapter {adapter} does not exist, the model has {adapters}")]
    Adapter {
        /// The adapter.
        adapter: usize,
        /// Adapters of the model.
        adapters: usize,
    },
    /// An image for a model that takes none, or others.
    #[error("an image with rows of {width} columns: the model takes rows of {want} (0: no images)")]
    Image {
        /// Columns of its rows.
        width: usize,
        /// Columns that the model takes.
        want: usize,
    },
    /// An image outside the prompt, or over another one.
    #[error(
        "an image of {len} rows at token {start} of a prompt of {prompt}: images must follow each other in it"
    )]
    ImagePlace {
        /// Its first token.
        start: usize,
        /// Its rows.
        len: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// An image that does not fit one step of a model whose images must not be cut.
    #[error("an image of {len} rows: this model reads images in one step, of at most {most} tokens")]
    ImageTooLong {
        /// Its rows.
        len: usize,
        /// Rows of an image at most.
        most: usize,
    },
    /// Longer than the context.
    #[error("{prompt} prompt tokens and {max_tokens} to generate do not fit the context of {max_context}")]
    Context {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens requested.
        max_tokens: usize,
        /// Maximum tokens of a sequence.
        max_context: usize,
    },
    /// More KV pages than the engine has, even alone.
    #[error("the request needs {need} KV pages of {page_len} tokens, the engine has {pages}")]
    Pages {
        /// Pages that the request needs.
        need: usize,
        /// Tokens per page.
        page_len: usize,
        /// Pages in total.
        pages: usize,
    },
    /// As many requests wait as may.
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
    /// A text to embed that the model cannot read.
    #[error("the text has {tokens} tokens, this model reads at most {max_tokens}")]
    TextTooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a text at most.
        max_tokens: usize,
    },
    /// The model computes vectors or scores.
    #[error("this model computes embeddings or scores of texts, it does not generate text")]
    NoText,
    /// An id is used twice.
    #[error("request {0} exists already")]
    Duplicate(u64),
    /// A weight or a size that does not fit the graph.
    #[error("{0}")]
    Load(String),
    /// The bytes of a weight could not be made.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A cache on disk for a runner that does not copy its pages.
    #[error("a cache on disk: this device does not copy pages of its KV cache, the CPU does")]
    NoDiskCache,
    /// A step failed; the runner's message.
    #[error("{0}")]
    Runner(String),
    /// The device lost its context, so the engine accepts no more work.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// The device has not enough memory.
    #[error("{0}")]
    OutOfMemory(String),
    /// The request's constraint could not be followed.
    #[error("constraint: {0}")]
    Constraint(String),
    /// The model is broken, or its arithmetic overflowed.
    #[error("the model produced values that are not finite (NaN or infinity) at position {position}")]
    NotFinite {
        /// The token's position, counted from 0 at the start of the prompt.
        position: usize,
    },
    /// An internal check failed, so the engine accepts no more work.
    #[error("the engine stopped: {0}")]
    Broken(String),
    /// A panic left the device in an unknown state, so the engine accepts no more work.
    #[error("the engine stopped after a panic: {0}")]
    Panicked(String),
    /// [`Handle::shutdown`](crate::Handle::shutdown) was called.
    #[error("the engine was shut down")]
    Stopped,
}

/// The cause of an error: what a server turns into a status.
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
    /// Its cause.
    pub fn fault(&self) -> Fault {
        match self {
            EngineError::EmptyPrompt
            | EngineError::Range { .. }
            | EngineError::Token { .. }
            | EngineError::Adapter { .. }
            | EngineError::Image { .. }
            | EngineError::ImagePlace { .. }
            | EngineError::ImageTooLong { .. }
            | EngineError::Context { .. }
            | EngineError::Pages { .. }
            | EngineError::TextTooLong { .. }
            | EngineError::NoText
            | EngineError::Constraint(_) => Fault::Request,
            EngineError::QueueFull { .. } => Fault::Busy,
            EngineError::Duplicate(_)
            | EngineError::Load(_)
            | EngineError::NoDiskCache
            | EngineError::Weight(_)
            | EngineError::Runner(_)
            | EngineError::DeviceLost(_)
            | EngineError::OutOfMemory(_)
            | EngineError::NotFinite { .. }
            | EngineError::Broken(_)
            | EngineError::Panicked(_)
            | EngineError::Stopped => Fault::Engine,
        }
    }

    /// Whether no request can be computed after it.
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

/// The device's message is the step's message.
impl From<BackendError> for EngineError {
    fn from(e: BackendError) -> EngineError {
        match e {
            BackendError::DeviceLost(message) => EngineError::DeviceLost(message),
            BackendError::OutOfMemory(message) => EngineError::OutOfMemory(message),
            other => EngineError::Runner(other.to_string()),
        }
    }
}
