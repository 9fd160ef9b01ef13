//! Why a folder of safetensors cannot be opened: each message names the file, the key or the tensor.

use crate::limits::MAX_JSON;
use crate::shown;

/// Why a folder of safetensors cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderError {
    /// A file is missing.
    #[error("the folder has no {}", shown(.0))]
    MissingFile(String),
    /// The folder has a tokenizer in another form only.
    #[error("the folder has no tokenizer.json: save the tokenizer with `transformers` to make one")]
    NoTokenizer,
    /// A file that should have a JSON object.
    #[error("{file} is not a JSON object: {why}")]
    NotJson {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A JSON file that is too large: its name, its bytes.
    #[error("{0} has {1} bytes: want at most {MAX_JSON}")]
    JsonTooLarge(String, u64),
    /// A key is missing.
    #[error("{file}: `{key}` is missing")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A key has a value of another type, or one that is not supported.
    #[error("{file}: `{key}`: want {want}, file has {}", shown(found))]
    Key {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What is supported.
        want: String,
        /// Its value.
        found: String,
    },
    /// No key of the configuration gives what this key of GGUF needs.
    #[error("no key of config.json gives `{0}`")]
    NoSource(String),
    /// An architecture that is not known.
    #[error("config.json: architecture {} is not supported", shown(.0))]
    Architecture(String),
    /// The tower of an architecture is not known.
    #[error("config.json: images are not supported by Tern for {}: run it without them", shown(.0))]
    Tower(String),
    /// A file has something that is not supported.
    #[error("{file} has {what}, which is not supported")]
    NotSupported {
        /// The file.
        file: String,
        /// What it has.
        what: String,
    },
    /// Layers of two kinds that no architecture has together.
    #[error("config.json: layers with an MLP beside layers with experts are not supported")]
    MlpBesideExperts,
    /// A module of sentence-transformers cannot be used.
    #[error("{file}: {why}")]
    Module {
        /// The file.
        file: String,
        /// Why not.
        why: String,
    },

    /// A shard is missing: its file.
    #[error("the file {} is missing: model.safetensors.index.json names it", shown(.0))]
    MissingShard(String),
    /// The index names a file elsewhere: for this tensor.
    #[error("model.safetensors.index.json: `{}`: want the name of a file beside it", shown(.0))]
    ShardElsewhere(String),
    /// Shards are missing, and the index that would name them: the files there are, all files.
    #[error("the folder has {0} of {1} safetensors files and no model.safetensors.index.json")]
    FewShards(usize, usize),

    /// A tensor is missing.
    #[error("tensor `{}` is missing", shown(.0))]
    MissingTensor(String),
    /// A tensor has another dtype, shape or value than its place in the model.
    #[error("tensor `{}`: want {want}, file has {found}", shown(name))]
    Tensor {
        /// The tensor.
        name: String,
        /// What its place needs.
        want: String,
        /// What it has.
        found: String,
    },
    /// A tensor whose dtype cannot be used.
    #[error("tensor `{}` has dtype {dtype}: want F32, F16 or BF16", shown(name))]
    Dtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
    },
    /// A tensor with something that is not supported, or that cannot be.
    #[error("tensor `{}`: {why}", shown(name))]
    TensorNotSupported {
        /// The tensor.
        name: String,
        /// What is not supported.
        why: String,
    },
    /// A scale that is not a positive number.
    #[error("tensor `{}` is {value}: want a positive number", shown(name))]
    Scale {
        /// The tensor.
        name: String,
        /// Its value.
        value: String,
    },
    /// Rows that are not those of the heads.
    #[error("tensor `{}` has {rows} rows: want {heads} heads of an even number of columns", shown(name))]
    Heads {
        /// The tensor.
        name: String,
        /// Its rows.
        rows: u64,
        /// Heads of the model.
        heads: u64,
    },
    /// A tensor that the architecture does not have.
    #[error("tensor `{}` is unexpected in {}{}", shown(name), shown(place), consequence(*.changes_results))]
    UnexpectedTensor {
        /// The tensor.
        name: String,
        /// The folder.
        place: String,
        /// Whether results without it would be wrong.
        changes_results: bool,
    },
    /// The tensor of one expert is missing.
    #[error("expert {expert} of `{}` is missing", shown(name))]
    MissingExpert {
        /// The expert.
        expert: u64,
        /// The tensor of all experts.
        name: String,
    },
    /// Experts are not alike.
    #[error("the {count} experts of `{}` differ in shape or dtype", shown(name))]
    ExpertsDiffer {
        /// Experts.
        count: u64,
        /// The tensor of all experts.
        name: String,
    },
}

fn consequence(changes_results: bool) -> &'static str {
    if changes_results { ": results without it would be wrong" } else { "" }
}

impl FolderError {
    /// The error of a tensor whose place needs floats.
    pub(crate) fn no_floats(name: impl Into<String>, found: impl ToString) -> FolderError {
        FolderError::tensor(name, "floats", found)
    }

    /// The error of a tensor with something else than its place needs.
    pub(crate) fn tensor(
        name: impl Into<String>,
        want: impl Into<String>,
        found: impl ToString,
    ) -> FolderError {
        FolderError::Tensor { name: name.into(), want: want.into(), found: found.to_string() }
    }
}
