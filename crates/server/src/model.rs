//! The served model and its names.

use tern::{Model, Sampling};

/// A loaded model with its names and default sampling parameters.
pub struct ServedModel {
    /// The model.
    pub model: Model,
    /// The first is its id; requests may use any of them.
    pub names: Vec<String>,
    /// Time of creation or loading, in seconds since 1970.
    pub created: u64,
    /// The sampling parameters of a request that sets none.
    pub defaults: Sampling,
}

impl ServedModel {
    /// OpenAI's documented defaults: temperature 1, no truncation.
    pub fn openai_defaults() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }

    pub(crate) fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }
}
