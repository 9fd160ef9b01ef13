//! Errors of chat templates.

/// What can be wrong with a template or its rendering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text is not a Jinja template.
    #[error("chat template, line {line}: {what}")]
    Syntax {
        /// Counted from one.
        line: usize,
        /// The compiler's words.
        what: String,
    },
    /// The text is too long to be a template.
    #[error("chat template has {len} bytes, the limit is {limit}")]
    Source {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The text is a template, but compiling it would take too much.
    #[error("chat template, line {line}: {what}")]
    Complex {
        /// Counted from one.
        line: usize,
        /// Which bound was passed.
        what: &'static str,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error("chat template, line {line}: {what}")]
    Render {
        /// Counted from one.
        line: usize,
        /// The engine's words.
        what: String,
    },
    /// The template took too many steps.
    #[error("chat template stopped after {0} steps")]
    Steps(u64),
    /// The template read or made too many bytes.
    #[error("chat template stopped after working on {0} bytes")]
    Work(u64),
    /// The template built a value inside a value inside a value, too often.
    #[error("chat template nests values too deeply")]
    Depth,
    /// The rendered text is too long.
    #[error("chat template rendered {len} bytes, the limit is {limit}")]
    Output {
        /// Bytes rendered.
        len: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// [`ChatInput::cancelled`] said that the text is no longer wanted.
    #[error("chat template stopped: it took too long, or its text is no longer wanted")]
    Cancelled,
    /// The template engine failed in a way that it does not report itself.
    #[error("chat template: the template engine failed: {0}")]
    Engine(String),
    /// An extra variable has the name of one that the conversation itself gives.
    #[error("chat template variable {0:?} cannot be replaced")]
    Reserved(String),
}
