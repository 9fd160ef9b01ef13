//! An HTTP server for models, compatible with the APIs of OpenAI, Anthropic and Ollama.
//!
//! [`Server`] listens; a [`Loader`] hands over the [`ServedModel`] once it is loaded, or a [`Library`] loads
//! those that are requested; [`Config`] holds the keys and limits. A request arrives over a connection with
//! limits (`http`); its body is read whole, parsed parameter by parameter and turned into engine requests on
//! a blocking thread (`routes`, `request`), and its answer is followed token by token (`generation`).
//! [`InProcess`] has the same routes without a network.
//!
//! What is deliberately absent: the crate names no device and no model file, reads no flag or environment
//! variable, and has no global state. The only files that it writes are those of [`FileStore`] and [`Batch`].

mod batch;
mod batches;
mod clock;
mod config;
mod failure;
mod file_store;
mod generation;
mod http;
mod ids;
mod in_process;
mod metrics;
mod models;
mod request;
mod response_store;
mod routes;
mod server;
mod state;

pub use batch::{Batch, BatchCounts, BatchError, BatchFiles, BatchRoutes, BatchRules, BatchStop, LineError};
pub use config::{Config, UnknownParameters};
pub use failure::ServeError;
pub use file_store::{FileLimits, FileStore};
pub use in_process::{InProcess, Reply};
pub use models::keep::KeepModels;
pub use models::library::{CheckedLoad, Library, LibraryModel, LoadError, ModelDetails};
pub use models::model::{DefaultAdapters, ServedModel};
pub use request::named_images::{ImageUrlError, ImageUrls};
pub use server::Server;
pub use state::Loader;

/// The `system_fingerprint` of every reply.
const FINGERPRINT: &str = concat!("tern-", env!("CARGO_PKG_VERSION"));
