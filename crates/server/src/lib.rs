//! An HTTP server of one model, as OpenAI's clients expect it.
//!
//! [`Server`] listens; a [`Loader`] brings the [`ServedModel`] in once it is loaded; [`Config`] holds the keys and limits.
//! A request is read whole, taken apart parameter by parameter (`params`), turned into engine requests beside the
//! reactor (`routes`, `prompt`, `options`), and followed token by token (`texts`, `generation`).
//!
//! What is deliberately absent: the crate names no device and no file, reads no flag or variable, and has no state
//! outside of its values.

mod access;
mod auth;
mod body;
mod chance;
mod client_io;
mod config;
mod connection;
mod constraint;
mod delta;
mod encode;
mod error;
mod failure;
mod generation;
mod hosts;
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
mod seats;
mod server;
mod sse;
mod state;
mod text_lists;
mod texts;
mod tools;

pub use config::Config;
pub use failure::ServeError;
pub use model::ServedModel;
pub use server::Server;
pub use state::Loader;

/// What made an answer, in every answer.
const FINGERPRINT: &str = concat!("tern-", env!("CARGO_PKG_VERSION"));
