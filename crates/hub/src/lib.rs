//! Model names to files: embedded, local, Hugging Face hub, package registries.
//!
//! [`resolve`] turns what follows `-m` into a [`Source`]; [`pull`] fetches it; [`list`] says what is here.
//! Files of the hub live in the hub's own cache layout, so that other tools share them.
//!
//! ```
//! use tern_hub::{Config, Silent, Source, resolve};
//!
//! let config = Config::from_env(|name| (name == "HOME").then(|| "/tmp/nobody".to_string()))?;
//! assert_eq!(resolve("stories", &config, false, &Silent)?, Source::Embedded("stories"));
//!
//! let error = resolve("smollm", &config, false, &Silent).unwrap_err().to_string();
//! assert!(error.starts_with("no model named 'smollm' (did you mean smollm2?)"));
//! # Ok::<(), tern_hub::HubError>(())
//! ```

mod cache;
mod config;
mod digest;
mod error;
mod fetch;
mod known;
mod list;
mod name;
mod package;
mod progress;
mod repo;
mod resolve;
mod select;
mod steady;

#[cfg(test)]
mod fake;

pub use config::Config;
pub use error::HubError;
pub use known::{HubFile, KNOWN, Known, Part, Registry};
pub use list::{Entry, Place, list};
pub use progress::{Progress, Silent};
pub use resolve::{Source, local, pull, resolve};
