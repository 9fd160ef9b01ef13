//! The models of this machine, of which a server loads those that are requested.

use crate::models::model::ServedModel;

/// A model that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryModel {
    /// The name that requests use.
    pub name: String,
    /// The size of its files.
    pub bytes: u64,
    /// When its file was last changed, in seconds since 1970.
    pub modified: u64,
}

/// The models that a server may load, download and delete. Its methods block.
pub trait Library: Send + Sync + 'static {
    /// The models that can be loaded without a download; the first is the default of requests without a name.
    fn list(&self) -> Vec<LibraryModel>;

    /// The name under which a requested name is loaded; none if there is no such model.
    fn find(&self, name: &str) -> Option<String>;

    /// Loads a model that [`Library::find`] returned.
    fn load(&self, name: &str) -> Result<ServedModel, String>;

    /// Downloads a model and reports the progress.
    fn pull(&self, name: &str, progress: &dyn tern::Progress) -> Result<(), String>;

    /// Deletes the files of a model.
    fn delete(&self, name: &str) -> Result<(), String>;
}
