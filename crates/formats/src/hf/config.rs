//! The JSON files of a folder, with typed lookups whose errors name the file and the key.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::limits::MAX_JSON;
use crate::{FolderError, FormatError, access::open_regular};

/// One JSON object of a folder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// The file it is from, for errors.
    file: String,
    /// The keys of the language model first, if the object has others too.
    objects: Vec<Map<String, Value>>,
    /// Keys that were looked up, of all copies.
    read: Arc<Mutex<HashSet<String>>>,
}

/// Keys that do not change what a model computes: training, other programs, biases, which are tensors, and
/// tokens, which the tokenizer's files have too.
const HARMLESS: &[&str] = &[
    "architectures",
    "attention_bias",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "eos_token_id",
    "hidden_dropout",
    "initializer_range",
    "mlp_bias",
    "model_type",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "residual_dropout",
    "rope_parameters",
    "rope_scaling",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "torch_dtype",
    "transformers_version",
    "unsloth_version",
    "use_cache",
];

/// A number as large as any.
const LARGE: &str = "1e300";

/// Keys under which configurations of several models have that of the language model.
const LANGUAGE: [&str; 3] = ["text_config", "llm_config", "language_config"];

type Lookup<T> = Result<T, FormatError>;

impl Config {
    /// Reads `file` of the folder; `None` if it does not exist.
    pub(crate) fn read(folder: &Path, file: &str) -> Lookup<Option<Config>> {
        let path = folder.join(file);
        let Some(text) = read_text(&path)? else { return Ok(None) };
        let parsed = serde_json::from_str(&text).or_else(|e| match text.contains("Infinity") {
            // Python writes it, JSON does not have it
            true => serde_json::from_str(&text.replace("Infinity", LARGE)),
            false => Err(e),
        });
        let object: Map<String, Value> =
            parsed.map_err(|e| FolderError::NotJson { file: file.into(), why: e.to_string() })?;
        let inner = LANGUAGE.iter().find_map(|key| object.get(*key)?.as_object().cloned());
        let objects = inner.into_iter().chain([object]).collect();
        Ok(Some(Config { file: file.into(), objects, read: Arc::default() }))
    }

    /// Keys of the language model that nothing has looked up, though they may change what it computes.
    pub(crate) fn unread(&self) -> Vec<String> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unread = |(key, value): &(&String, &Value)| {
            // what is off, or as in nearly all models
            let is_empty = value.as_array().is_some_and(Vec::is_empty);
            let is_usual = value.is_null() || is_empty || **value == false || **value == "silu";
            !is_usual && !read.contains(*key) && !HARMLESS.contains(&key.as_str())
        };
        self.objects.first().into_iter().flatten().filter(is_unread).map(|(key, _)| key.clone()).collect()
    }

    /// The whole object, without the keys of the language model in its own.
    pub(crate) fn outer(&self) -> Config {
        Config {
            file: self.file.clone(),
            objects: self.objects.last().cloned().into_iter().collect(),
            read: Arc::default(),
        }
    }

    /// The value of a key; `null` counts as missing.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let found = self.objects.iter().find_map(|object| object.get(key)).filter(|value| !value.is_null());
        if found.is_some() {
            self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        }
        found
    }

    /// All keys and values, those of the language model first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.objects.iter().flatten()
    }

    /// The object under a key, as a separate configuration.
    pub(crate) fn object(&self, key: &str) -> Lookup<Option<Config>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let object = value.as_object().ok_or_else(|| self.wrong(key, "an object"))?;
        Ok(Some(Config {
            file: format!("{}: {key}", self.file),
            objects: vec![object.clone()],
            read: Arc::default(),
        }))
    }

    pub(crate) fn optional_usize(&self, key: &str) -> Lookup<Option<u64>> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    pub(crate) fn usize(&self, key: &str) -> Lookup<u64> {
        self.optional_usize(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn optional_f64(&self, key: &str) -> Lookup<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(crate) fn f64(&self, key: &str) -> Lookup<f64> {
        self.optional_f64(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn optional_bool(&self, key: &str) -> Lookup<Option<bool>> {
        self.typed(key, "a bool", Value::as_bool)
    }

    pub(crate) fn optional_str(&self, key: &str) -> Lookup<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn optional_f64s(&self, key: &str) -> Lookup<Option<Vec<f64>>> {
        self.typed(key, "a list of numbers", |v| v.as_array()?.iter().map(Value::as_f64).collect())
    }

    pub(crate) fn optional_usizes(&self, key: &str) -> Lookup<Option<Vec<u64>>> {
        self.typed(key, "a list of whole numbers", |v| v.as_array()?.iter().map(Value::as_u64).collect())
    }

    pub(crate) fn optional_strings(&self, key: &str) -> Lookup<Option<Vec<&str>>> {
        self.typed(key, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Lookup<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(key, want))
    }

    /// The error of a missing key.
    pub(crate) fn missing(&self, key: &str) -> FormatError {
        FolderError::MissingKey { file: self.file.clone(), key: key.into() }.into()
    }

    /// The error of a value that is not what was expected.
    pub(crate) fn wrong(&self, key: &str, want: &str) -> FormatError {
        let found = self.get(key).map_or("nothing".into(), Value::to_string);
        let (file, key, want) = (self.file.clone(), key.into(), want.into());
        FolderError::Key { file, key, want, found }.into()
    }
}

/// The text of a file; `None` if it does not exist.
pub(crate) fn read_text(path: &Path) -> Lookup<Option<String>> {
    let io = |e| FormatError::Io(path.into(), e);
    let bytes = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    if bytes > MAX_JSON {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(FolderError::JsonTooLarge(name, bytes).into());
    }
    let mut text = String::new();
    open_regular(path).and_then(|mut file| file.read_to_string(&mut text)).map_err(io)?;
    Ok(Some(text))
}
