//! Why a grammar is refused.

use std::time::Duration;

/// Why a grammar is refused. All but [`GrammarError::Busy`] and [`GrammarError::Vocabulary`] are the asker's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// Too long.
    #[error("the {what} has {found} bytes: at most {limit} are allowed")]
    Size {
        /// `JSON schema`, `regex`, ...
        what: &'static str,
        /// Its length; for a schema that of its shortest JSON.
        found: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// Too many of something.
    #[error("{found} {what}: at most {limit} are allowed")]
    Count {
        /// `choices`, `tools`, ...
        what: &'static str,
        /// How many there are.
        found: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// Objects and arrays too deep inside each other.
    #[error("the {what} is nested more than {limit} levels deep")]
    Depth {
        /// `JSON schema`, ...
        what: &'static str,
        /// The most that is taken.
        limit: usize,
    },
    /// Nothing where something is needed.
    #[error("the {0} must not be empty")]
    Empty(&'static str),
    /// A keyword of a schema that would not be followed.
    #[error("the schema keyword `{keyword}` (at `{at}`) is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// Where in the schema, as a JSON pointer.
        at: String,
    },
    /// A value that the keyword does not take.
    #[error("the schema keyword `{keyword}` (at `{at}`) must be {want}")]
    Value {
        /// The keyword.
        keyword: String,
        /// Where in the schema, as a JSON pointer.
        at: String,
        /// What it takes.
        want: &'static str,
    },
    /// A reference that leaves the schema, or one that cannot be read.
    #[error(
        "`$ref` to `{reference}` (at `{at}`): only places in the same schema (`#/...`) can be referred to"
    )]
    Reference {
        /// Where it points.
        reference: String,
        /// Where in the schema, as a JSON pointer.
        at: String,
    },
    /// What is wrong with the arguments of a tool.
    #[error("tool `{name}`: {error}")]
    Tool {
        /// Which one.
        name: String,
        /// What is wrong.
        error: Box<GrammarError>,
    },
    /// The parser does not take it, and says why.
    #[error("the {what} cannot be used: {why}")]
    Invalid {
        /// `JSON schema`, `regex`, ...
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// Takes too long.
    #[error("the {what} takes more than {limit:?} to compile")]
    Slow {
        /// `JSON schema`, `regex`, ...
        what: &'static str,
        /// How long it was given.
        limit: Duration,
    },
    /// Too many are being compiled.
    #[error("too many grammars are being compiled: try again later")]
    Busy,
    /// The model's vocabulary cannot be constrained.
    #[error("this model's text cannot be constrained: {0}")]
    Vocabulary(String),
}

/// The line of a parser's error that says why, without what is there for its developers.
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
