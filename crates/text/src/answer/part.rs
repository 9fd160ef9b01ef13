//! The parts of an answer.

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer itself.
    Content(String),
    /// A tool call begins.
    CallBegin {
        /// Counted from zero.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments: JSON as the model wrote it.
    CallArguments {
        /// The call's.
        index: usize,
        /// The piece.
        text: String,
    },
}
