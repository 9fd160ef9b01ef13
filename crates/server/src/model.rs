//! The model that is served, and what requests call it.

use tern::{Model, Sampling};

/// A loaded model, with what the server adds to it.
pub struct ServedModel {
    /// The model.
    pub model: Model,
    /// The first is its id; requests may use any of them.
    pub names: Vec<String>,
    /// When it was made or loaded, in seconds since 1970.
    pub created: u64,
    /// The sampling parameters of a request that sets none.
    pub defaults: Sampling,
}

impl ServedModel {
    /// What OpenAI documents for a request that sets no parameters: temperature 1, nothing cut off.
    pub fn openai_defaults() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }

    pub(crate) fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }
}
