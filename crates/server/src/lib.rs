//! An HTTP server for one model, compatible with the OpenAI API.
//!
//! [`Server`] listens; a [`Loader`] hands over the [`ServedModel`] once it is loaded; [`Config`] holds the keys and limits.
//! A request body is read whole, parsed parameter by parameter (`params`), turned into engine requests on a blocking
//! thread (`routes`, `prompt`, `options`), and followed token by token (`choice_streams`, `generation`).
//!
//! What is deliberately absent: the crate names no device and no file, reads no flag or environment variable, and has
//! no global state.

mod access;
mod auth;
mod body;
mod choice_streams;
mod client_io;
mod config;
mod connection;
mod connection_slots;
mod constraint;
mod delta;
mod encode;
mod error;
mod failure;
mod generation;
mod hosts;
mod ids;
mod ignored;
mod json;
mod messages;
mod metrics;
mod model;
mod options;
mod params;
mod prepare;
mod probe;
mod prompt;
mod routes;
mod server;
mod sse;
mod state;
mod text_lists;
mod tools;

pub use config::{Config, UnknownParameters};
pub use failure::ServeError;
pub use model::ServedModel;
pub use server::Server;
pub use state::Loader;

/// The `system_fingerprint` of every reply.
const FINGERPRINT: &str = concat!("tern-", env!("CARGO_PKG_VERSION"));
