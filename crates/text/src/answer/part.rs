//! The parts of an answer.

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer itself.
    Content(String),
    /// The start of a tool call.
    CallBegin {
        /// Counts from zero.
        index: usize,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments: JSON as the model wrote it.
    CallArguments {
        /// The call's index.
        index: usize,
        /// The text.
        text: String,
    },
}
