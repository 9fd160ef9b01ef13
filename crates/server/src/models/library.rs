//! The models of this machine, of which a server loads those that are requested.

use std::time::Instant;

use crate::models::model::ServedModel;

/// A model that can be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryModel {
    /// The name that requests use.
    pub name: String,
    /// The size of its files.
    pub bytes: u64,
    /// When its file was last changed, in seconds since 1970.
    pub modified: u64,
    /// What identifies its contents, in hexadecimal digits; empty if it is not known.
    pub digest: String,
    /// What its header says; none if it is not known.
    pub details: Option<ModelDetails>,
}

/// What the header of a model says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelDetails {
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// Its architecture, such as `llama`.
    pub family: String,
    /// The number of its weights.
    pub parameters: u64,
    /// The format that most of its weights are in, such as `Q4_K`.
    pub quantization: &'static str,
    /// Whether it has a chat template.
    pub chats: bool,
    /// Whether it takes images.
    pub sees: bool,
}

/// A model whose files are read and checked: nothing of it is on a device yet.
pub struct CheckedLoad {
    /// Memory that it takes at least.
    pub bytes: u64,
    /// Moves it to its device.
    pub start: Box<dyn FnOnce() -> Result<ServedModel, LoadError> + Send>,
}

/// Why a checked model could not be moved to its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The reason.
    pub message: String,
    /// Whether memory was missing, so that it may succeed without other models.
    pub is_memory: bool,
}

/// The models that a server may load, download and delete. Its methods block.
pub trait Library: Send + Sync + 'static {
    /// The models that can be loaded, without a digest and details if these take time.
    fn list(&self) -> Vec<LibraryModel>;

    /// The same with digests and details, as far as they are known within a moment.
    fn described(&self) -> Vec<LibraryModel> {
        self.list()
    }

    /// The model of requests that name none.
    fn default_model(&self) -> Option<String>;

    /// The name under which a requested name is loaded; none if there is no such model.
    fn find(&self, name: &str) -> Option<String>;

    /// Whether a model that is not here could be downloaded by this name.
    fn is_downloadable(&self, name: &str) -> bool;

    /// Reads and checks a model that [`Library::find`] returned. At `until` the load is to end, complete or
    /// not, also that by [`CheckedLoad::start`].
    fn open(&self, name: &str, until: Option<Instant>) -> Result<CheckedLoad, String>;

    /// Downloads a model and reports the progress, until it is complete or the progress says that it is
    /// stopped.
    fn pull(&self, name: &str, progress: &dyn tern::Progress) -> Result<(), String>;

    /// Deletes the files of a model.
    fn delete(&self, name: &str) -> Result<(), String>;
}
