//! Errors of chat templates.

/// Why a template cannot be compiled or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text is not a Jinja template.
    #[error("chat template, line {line}: {what}")]
    Syntax {
        /// Counts from one.
        line: usize,
        /// The compiler's message.
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
    /// Compiling the template would exceed a limit.
    #[error("chat template, line {line}: {what}")]
    Complex {
        /// Counts from one.
        line: usize,
        /// The exceeded limit.
        what: &'static str,
    },
    /// The template rejected the conversation with `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error("chat template, line {line}: {what}")]
    Render {
        /// Counts from one.
        line: usize,
        /// The engine's message.
        what: String,
    },
    /// The template took too many steps.
    #[error("chat template exceeded the limit of {0} steps")]
    Steps(u64),
    /// The template read or created too many bytes.
    #[error("chat template exceeded the limit of {0} processed bytes")]
    Work(u64),
    /// The template created a value that is nested too deeply.
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
    /// Cancelled by [`super::ChatInput::cancelled`].
    #[error("chat template cancelled: deadline exceeded or client disconnected")]
    Cancelled,
    /// The template engine panicked.
    #[error("chat template: the template engine failed: {0}")]
    Engine(String),
    /// An extra variable has a reserved name.
    #[error("chat template variable {0:?} cannot be replaced")]
    Reserved(String),
}
