//! Errors of the command line: one sentence each.

use std::fmt;
use std::io;

use tern_server::ServeError;

pub(crate) type CliResult<T> = Result<T, CliError>;

/// What went wrong, in words.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The sentence.
    Said(String),
    /// Reading stdin or writing stdout failed.
    Io(io::Error),
}

impl CliError {
    pub(crate) fn said(text: impl Into<String>) -> CliError {
        CliError::Said(text.into())
    }

    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, CliError::Io(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Said(text) => f.write_str(text),
            CliError::Io(e) => write!(f, "standard input or output: {e}"),
        }
    }
}

impl From<io::Error> for CliError {
    fn from(e: io::Error) -> CliError {
        CliError::Io(e)
    }
}

/// Why a model cannot be loaded is said as by every other command.
impl From<ServeError> for CliError {
    fn from(e: ServeError) -> CliError {
        match e {
            ServeError::Load(why) => CliError::Said(why),
            ServeError::Engine(why) => why.into(),
        }
    }
}

/// Errors of the crates below say it all already.
macro_rules! from_below {
    ($($error:ty),*) => {
        $(impl From<$error> for CliError {
            fn from(e: $error) -> CliError {
                CliError::Said(e.to_string())
            }
        })*
    };
}

from_below!(
    tern::formats::FormatError,
    tern::formats::MetadataError,
    tern::models::ModelError,
    tern::engine::EngineError,
    tern::engine::SamplingError,
    tern::graph::BackendError,
    tern::graph::GraphError,
    tern::text::TokenizerError,
    tern::text::StopError,
    tern::hub::HubError
);

/// The library knows no flags; what helps is added here.
impl From<tern::Error> for CliError {
    fn from(e: tern::Error) -> CliError {
        CliError::Said(match &e {
            tern::Error::Context { requested, trained, .. } => {
                format!("-c {requested}: exceeds the model's trained context of {trained} tokens")
            }
            tern::Error::Memory { .. } => {
                format!("{e}; use a smaller context (-c) or a smaller format")
            }
            _ => e.to_string(),
        })
    }
}
