//! Why a batch cannot be run, or ended before its last line.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a line of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// From 1.
    pub line: usize,
    /// In the words of OpenAI's API, such as `duplicate_custom_id`.
    pub code: &'static str,
    /// The member that is at fault.
    pub param: Option<&'static str>,
    /// What is wrong, and what was expected.
    pub message: String,
}

/// Why a batch cannot be run, or ended before its last line.
#[derive(Debug)]
pub enum BatchError {
    /// The input has lines that are no requests. Nothing was answered.
    Lines {
        /// The input.
        file: PathBuf,
        /// The first of them; at least one.
        errors: Vec<LineError>,
        /// How many there are.
        count: usize,
    },
    /// A file cannot be used, with the reason.
    File(PathBuf, String),
    /// The engine has ended. What is written is kept.
    Engine(String),
}

impl BatchError {
    pub(super) fn io(file: &Path, error: &io::Error) -> BatchError {
        BatchError::File(file.into(), error.to_string())
    }

    /// A line is wrong that was right when the batch was opened.
    pub(super) fn changed(file: &Path, error: &LineError) -> BatchError {
        BatchError::File(file.into(), format!("it has changed since the batch was started: {error}"))
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchError::Lines { file, errors, count } => {
                let first = errors.first().map_or(String::new(), ToString::to_string);
                write!(f, "{}: {first}", file.display())?;
                match count.saturating_sub(1) {
                    0 => Ok(()),
                    1 => f.write_str(" (and one more line is wrong)"),
                    more => write!(f, " (and {more} more lines are wrong)"),
                }
            }
            BatchError::File(file, why) => write!(f, "{}: {why}", file.display()),
            BatchError::Engine(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for BatchError {}
