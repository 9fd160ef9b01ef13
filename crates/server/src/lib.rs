//! An HTTP server for models, compatible with the APIs of OpenAI, Anthropic and Ollama.
//!
//! [`Server`] listens; a [`Loader`] hands over the [`ServedModel`] once it is loaded, or a [`Library`] loads those that are
//! requested; [`Config`] holds the keys and limits.
//! A request body is read whole, parsed parameter by parameter (`params`), turned into engine requests on a blocking
//! thread (`routes`, `prompt`, `options`), and followed token by token (`choice_streams`, `generation`).
//!
//! What is deliberately absent: the crate names no device and no file, reads no flag or environment variable, and has
//! no global state.

mod access;
mod adapters;
mod auth;
mod body;
mod chat_request;
mod choice_streams;
mod client_io;
mod clients;
mod clock;
mod config;
mod connection;
mod connection_slots;
mod constraint;
mod conversation;
mod delta;
mod encode;
mod error;
mod error_shape;
mod failure;
mod frames;
mod gap;
mod generation;
mod hosts;
mod ids;
mod ignored;
mod json;
mod library;
mod metrics;
mod model;
mod options;
mod params;
mod prepare;
mod probe;
mod prompt;
mod registry;
mod response_store;
mod response_stream;
mod routes;
mod samplers;
mod scoring;
mod server;
mod state;
mod text_lists;
mod text_request;
mod tools;

pub use adapters::DefaultAdapters;
pub use config::{Config, UnknownParameters};
pub use failure::ServeError;
pub use library::{Library, LibraryModel};
pub use model::ServedModel;
pub use registry::KeepModels;
pub use server::Server;
pub use state::Loader;

/// The `system_fingerprint` of every reply.
const FINGERPRINT: &str = concat!("tern-", env!("CARGO_PKG_VERSION"));
