//! How a model is loaded: keyword arguments, named as the flags of `tern serve`.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tern::formats::Access;
use tern::{AdapterFile, CacheFolder, Context, KvCells, KvMemory, LoadOptions};

/// Sets an option from its value.
type Set = fn(&mut LoadOptions, &Bound<'_, PyAny>) -> PyResult<()>;

/// Every option, and how it is set.
#[expect(clippy::unit_arg, reason = "an assignment per line that may fail")]
const OPTIONS: &[(&str, Set)] = &[
    ("device", |options, value| Ok(options.device = text(value)?)),
    ("threads", |options, value| Ok(options.threads = Some(positive(value)?))),
    ("reproducible", |options, value| Ok(options.reproducible = value.extract()?)),
    ("activations", |options, value| Ok(options.activations = text(value)?)),
    ("context", |options, value| Ok(options.context = Context::Exactly(positive(value)?))),
    ("experts", |options, value| Ok(options.experts = text(value)?)),
    ("gpu_layers", |options, value| Ok(options.gpu_layers = text(value.str()?.as_any())?)),
    ("speculate", |options, value| Ok(options.speculation = text(value)?)),
    ("draft_max", |options, value| Ok(options.draft_max = value.extract()?)),
    ("kv", |options, value| Ok(options.kv_cells = Some(cells(value)?))),
    ("kv_pages", |options, value| Ok(options.kv_memory = KvMemory::Pages(positive(value)?))),
    ("kv_bytes", |options, value| Ok(options.kv_memory = KvMemory::Bytes(value.extract()?))),
    ("state_cache", |options, value| Ok(options.state_cache = Some(mebibytes(value)?))),
    ("cache_dir", |options, value| Ok(options.cache_folder = Some(cache_folder(value)?))),
    ("max_num_seqs", |options, value| Ok(options.max_seqs = positive(value)?)),
    ("max_queue", |options, value| Ok(options.max_waiting = value.extract()?)),
    ("max_batch_tokens", |options, value| Ok(options.step_tokens = Some(positive(value)?))),
    ("step_millis", |options, value| Ok(options.step_millis = value.extract()?)),
    ("mmap", |options, value| Ok(options.access.copy = !value.extract::<bool>()?)),
    ("mlock", |options, value| Ok(options.access.lock = value.extract()?)),
    ("pooling", |options, value| Ok(options.pooling = Some(text(value)?))),
    ("chat_template", |options, value| Ok(options.chat_template = Some(value.extract()?))),
    ("lora", |options, value| Ok(options.adapters = adapters(value)?)),
];

/// The names of all options.
pub(crate) const NAMES: [&str; OPTIONS.len()] = {
    let (mut names, mut at) = ([""; OPTIONS.len()], 0);
    while at < names.len() {
        names[at] = OPTIONS[at].0;
        at += 1;
    }
    names
};

/// Requests that may wait: those of a process wait for each other rather than fail.
const QUEUE: usize = 1 << 16;

/// The options of keyword arguments; those that are `None` are not set.
pub(crate) fn load_options(given: &Bound<'_, PyDict>) -> PyResult<LoadOptions> {
    let mut options = LoadOptions {
        context: Context::TRAINED,
        max_seqs: 32,
        max_waiting: QUEUE,
        access: Access::default(),
        ..LoadOptions::default()
    };
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        let Some((_, set)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
            let known = NAMES.join(", ");
            return Err(PyTypeError::new_err(format!("unknown option {name}: expected one of {known}")));
        };
        if !value.is_none() {
            set(&mut options, &value).map_err(|error| named(value.py(), &name, error))?;
        }
    }
    Ok(options)
}

/// An error with the name of its option.
fn named(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let message = format!("{name}: {}", error.value(py));
    if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(message)
    } else {
        PyValueError::new_err(message)
    }
}

/// A folder, or a folder and the MiB of its files at most.
fn cache_folder(value: &Bound<'_, PyAny>) -> PyResult<CacheFolder> {
    match value.extract::<(PathBuf, usize)>() {
        Ok((folder, mib)) => Ok(CacheFolder::new(folder, (mib as u64).saturating_mul(1 << 20))),
        Err(_) => Ok(CacheFolder::new(value.extract::<PathBuf>()?, CacheFolder::DEFAULT_BYTES)),
    }
}

/// A value that is written as text.
fn text<T: FromStr<Err: Display>>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    let given: String = value.extract()?;
    given.parse().map_err(|error| PyValueError::new_err(format!("{error}, got {given:?}")))
}

fn positive(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<i128>()? {
        number @ 1.. => {
            usize::try_from(number).map_err(|_| PyValueError::new_err(format!("{number} is too large")))
        }
        number => Err(PyValueError::new_err(format!("expected a whole number from 1, got {number}"))),
    }
}

/// Bytes of a number of MiB.
fn mebibytes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let number = value.extract::<u64>()?;
    number.checked_mul(1 << 20).ok_or_else(|| PyValueError::new_err(format!("{number} is too large")))
}

fn cells(value: &Bound<'_, PyAny>) -> PyResult<KvCells> {
    match value.extract::<String>()?.as_str() {
        "f16" => Ok(KvCells::F16),
        "int8" => Ok(KvCells::Int8),
        "fp8" => Ok(KvCells::Fp8),
        other => Err(PyValueError::new_err(format!("expected f16, int8 or fp8, got {other:?}"))),
    }
}

/// `{name: path}` or `{name: (path, scale)}`.
fn adapters(value: &Bound<'_, PyAny>) -> PyResult<Vec<AdapterFile>> {
    let files = value.cast::<PyDict>().map_err(|_| {
        PyTypeError::new_err("expected a dict of names and paths, or of names and (path, scale)")
    })?;
    let file = |(name, file): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let (path, scale) = match file.extract() {
            Ok(both) => both,
            Err(_) => (file.extract()?, 1.0),
        };
        Ok(AdapterFile { name: name.extract()?, path, scale })
    };
    files.iter().map(file).collect()
}
