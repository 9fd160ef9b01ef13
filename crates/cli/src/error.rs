//! Errors of the command line: one sentence each.

use std::fmt;
use std::io;

use tern::formats::FormatError;
use tern::models::ModelError;
use tern_server::ServeError;

pub(crate) type CliResult<T> = Result<T, CliError>;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum CliError {
    /// A sentence for the user.
    Message(String),
    /// Reading stdin or writing stdout failed.
    Io(io::Error),
}

impl CliError {
    pub(crate) fn message(text: impl Into<String>) -> CliError {
        CliError::Message(text.into())
    }

    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, CliError::Io(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Message(text) => f.write_str(text),
            CliError::Io(e) => write!(f, "standard input or output: {e}"),
        }
    }
}

impl From<io::Error> for CliError {
    fn from(e: io::Error) -> CliError {
        CliError::Io(e)
    }
}

/// A model that cannot be loaded gives the same message as with every other command.
impl From<ServeError> for CliError {
    fn from(e: ServeError) -> CliError {
        match e {
            ServeError::Load(why) => CliError::Message(why),
            ServeError::Engine(why) => why.into(),
        }
    }
}

/// Errors whose own message is complete.
macro_rules! from_display {
    ($($error:ty),*) => {
        $(impl From<$error> for CliError {
            fn from(e: $error) -> CliError {
                CliError::Message(e.to_string())
            }
        })*
    };
}

from_display!(
    tern::formats::MetadataError,
    tern::engine::EngineError,
    tern::engine::SamplingError,
    tern::graph::BackendError,
    tern::graph::GraphError,
    tern::text::TokenizerError,
    tern::text::StopError,
    tern::hub::HubError
);

/// The library knows no flags; advice about them is added here.
impl From<tern::Error> for CliError {
    fn from(e: tern::Error) -> CliError {
        CliError::Message(match &e {
            tern::Error::Context { requested, trained, .. } => {
                format!("-c {requested}: exceeds the model's trained context of {trained} tokens")
            }
            tern::Error::Memory { .. } => {
                format!("{e}; use a smaller context (-c) or a smaller format")
            }
            tern::Error::Model(e) => advised_model(e),
            tern::Error::Format(e) => advised_file(e),
            _ => e.to_string(),
        })
    }
}

impl From<ModelError> for CliError {
    fn from(e: ModelError) -> CliError {
        CliError::Message(advised_model(&e))
    }
}

impl From<FormatError> for CliError {
    fn from(e: FormatError) -> CliError {
        CliError::Message(advised_file(&e))
    }
}

fn advised_model(e: &ModelError) -> String {
    match e {
        ModelError::IsAdapter => format!("{e}, and the adapter with --lora"),
        _ => e.to_string(),
    }
}

fn advised_file(e: &FormatError) -> String {
    match e {
        FormatError::Conversion(_, why) if why.needs_quantizing() => format!("{e}: use `tern quantize`"),
        _ => e.to_string(),
    }
}
