//! Errors of compiling a grammar.

use std::time::Duration;

/// Why a grammar is rejected. All but [`GrammarError::Busy`] and [`GrammarError::Vocabulary`]
/// are errors of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// Too long.
    #[error("the {what} has {found} bytes: at most {limit} are allowed")]
    Size {
        /// `JSON schema`, `regex`, ...
        what: &'static str,
        /// Its length; for a schema the length of its compact JSON.
        found: usize,
        /// The maximum.
        limit: usize,
    },
    /// Too many of something.
    #[error("{found} {what}: at most {limit} are allowed")]
    Count {
        /// `choices`, `tools`, ...
        what: &'static str,
        /// Their number.
        found: usize,
        /// The maximum.
        limit: usize,
    },
    /// Objects and arrays nested too deeply.
    #[error("the {what} is nested more than {limit} levels deep")]
    Depth {
        /// `JSON schema`, ...
        what: &'static str,
        /// The maximum.
        limit: usize,
    },
    /// An empty text or list.
    #[error("the {0} must not be empty")]
    Empty(&'static str),
    /// A schema keyword that is not supported.
    #[error("the schema keyword `{keyword}` (at `{at}`) is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// Where in the schema, as a JSON pointer.
        at: String,
    },
    /// An invalid value of a keyword.
    #[error("the schema keyword `{keyword}` (at `{at}`) must be {want}")]
    Value {
        /// The keyword.
        keyword: String,
        /// Where in the schema, as a JSON pointer.
        at: String,
        /// What was expected.
        want: &'static str,
    },
    /// A reference out of the schema, or an invalid one.
    #[error(
        "`$ref` to `{reference}` (at `{at}`): only references into the same schema (`#/...`) are supported"
    )]
    Reference {
        /// The reference.
        reference: String,
        /// Where in the schema, as a JSON pointer.
        at: String,
    },
    /// An error in the schema of a tool's arguments.
    #[error("tool `{name}`: {error}")]
    Tool {
        /// The tool.
        name: String,
        /// The error.
        error: Box<GrammarError>,
    },
    /// Rejected by the parser.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// `JSON schema`, `regex`, ...
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// A timeout.
    #[error("the {what} takes more than {limit:?} to compile")]
    Slow {
        /// `JSON schema`, `regex`, ...
        what: &'static str,
        /// The timeout.
        limit: Duration,
    },
    /// Too many are being compiled.
    #[error("too many grammars are being compiled: try again later")]
    Busy,
    /// The model's vocabulary cannot be constrained.
    #[error("constrained decoding is not available for this model: {0}")]
    Vocabulary(String),
}

/// The line of a parser's error with the reason, without details for its developers.
pub(crate) fn first_line(message: impl ToString) -> String {
    const LONGEST: usize = 300;
    let message = message.to_string();
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut line = lines.next().unwrap_or("no reason given");
    if line.ends_with(':') {
        // a heading: the reason is below what it shows of the grammar
        line = lines.next_back().unwrap_or(line).trim_start_matches("error: ");
    }
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
