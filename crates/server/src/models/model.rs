//! The served model and its names.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tern::{AdapterScales, Model, PartialSampling, Sampling};

/// A loaded model with its names and default sampling parameters.
pub struct ServedModel {
    /// The model.
    pub model: Model,
    /// The first is its id; requests may use any of them.
    pub names: Vec<String>,
    /// Time of creation or loading, in seconds since 1970.
    pub created: u64,
    /// What identifies its contents, in hexadecimal digits; empty if it is not known.
    pub digest: String,
    /// The sampling parameters of a request that sets none.
    pub defaults: Sampling,
    /// The adapters of a request that chooses none.
    pub default_adapters: DefaultAdapters,
}

impl ServedModel {
    /// A model that is loaded now, with the sampling parameters that its file recommends.
    pub fn new(model: Model, names: Vec<String>) -> ServedModel {
        let mut defaults = model.recommended().or(PartialSampling::USUAL).over(Sampling::default());
        defaults.dry.breakers = model.breakers(Model::BREAKERS);
        ServedModel {
            names,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            digest: String::new(),
            defaults,
            default_adapters: DefaultAdapters::default(),
            // requests choose theirs
            model: model.with_adapters(AdapterScales::NONE),
        }
    }

    /// Whether requests may use this name; Ollama's clients append a tag.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        let has = |name: &str| self.names.iter().any(|known| known == name);
        has(name) || name.strip_suffix(":latest").is_some_and(has)
    }

    /// The adapter that a request names instead of the model.
    pub(crate) fn adapter(&self, name: &str) -> Option<AdapterScales> {
        let untagged = || self.model.adapter(name.strip_suffix(":latest")?);
        self.model.adapter(name).or_else(untagged).filter(|_| !self.has_name(name))
    }

    /// Memory of its device that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.model.facts().map_or(0, |facts| facts.memory)
    }

    pub(crate) fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }
}

/// The adapters of requests that choose none: no adapter, until `POST /lora-adapters` sets their scales.
#[derive(Debug, Default)]
pub struct DefaultAdapters(Mutex<AdapterScales>);

impl DefaultAdapters {
    /// The scales that are set.
    pub(crate) fn scales(&self) -> AdapterScales {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, scales: AdapterScales) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = scales;
    }
}
