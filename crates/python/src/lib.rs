//! The native module of the Python package: a loaded model, its requests, and the command.
//!
//! What users call is written in Python (`python/tern_llm`) on top of this: bodies of requests go in as JSON,
//! and the routes of the server answer them in this process, so that parameters, answers and errors are the
//! same.
//! Nothing here holds the interpreter's lock while it waits.

mod command;
mod engine;
mod loading;
mod options;
mod running;

use pyo3::prelude::*;

/// The module `tern_llm._native`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use tern::graph::PARAMETERS;

    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::loading::{Error, LoadError};
    #[pymodule_export]
    use crate::running::{Replies, Reply};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("LOAD_OPTIONS", crate::options::NAMES.to_vec())?;
        let sampling: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
        module.add("SAMPLING_PARAMETERS", sampling)
    }
}
