//! A fake hub and two fake package registries in memory, for tests.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::io::Read;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::fetch::{Fetch, FetchError, Program, Reply};
use crate::progress::Progress;
use crate::repo::Job;
use crate::{Config, HubError, Source, resolve};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The hash of a text in the hub's notation.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// An isolated environment: a folder for the caches, and reachable servers.
#[derive(Default)]
pub(crate) struct World {
    /// Responses by address; if empty, the hub is unreachable.
    pub(crate) pages: HashMap<String, Vec<u8>>,
    /// Bytes after which a response is interrupted.
    pub(crate) breaks_after: Cell<Option<usize>>,
    /// Packages (`name==version`, `name@version`): the file's path and its bytes.
    pub(crate) packages: HashMap<String, (String, Vec<u8>)>,
    /// Requests and commands, in order.
    pub(crate) asked: RefCell<Vec<String>>,
    /// Displayed notes.
    pub(crate) notes: RefCell<Vec<String>>,
    /// No request waits for the download any more.
    pub(crate) stopped: Cell<bool>,
}

/// A temporary folder and the settings that keep everything inside it.
pub(crate) fn config() -> (TempDir, Config) {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap().to_string();
    let mut config = Config::from_env(|name| (name == "HOME").then(|| home.clone())).unwrap();
    config.endpoint = "http://hub".to_string();
    (folder, config)
}

impl World {
    /// Adds a repository to the hub: large files with a SHA-256, `.json` files with a git hash.
    pub(crate) fn repository(&mut self, repo: &str, revision: &str, files: &[(&str, &[u8])]) {
        let mut siblings = Vec::new();
        for (file, bytes) in files {
            siblings.push(match file.ends_with(".json") {
                true => format!(
                    r#"{{"rfilename":"{file}","size":{},"blobId":"{}"}}"#,
                    bytes.len(),
                    &sha256(bytes)[..40]
                ),
                false => format!(
                    r#"{{"rfilename":"{file}","size":{0},"blobId":"aa","lfs":{{"sha256":"{1}","size":{0},"pointerSize":9}}}}"#,
                    bytes.len(),
                    sha256(bytes)
                ),
            });
            self.pages.insert(format!("http://hub/{repo}/resolve/{COMMIT}/{file}"), bytes.to_vec());
        }
        let listing = format!(r#"{{"id":"{repo}","sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(","));
        let url = format!("http://hub/api/models/{repo}/revision/{revision}?blobs=true");
        self.pages.insert(url, listing.into_bytes());
    }

    pub(crate) fn pull(&self, name: &str, config: &Config) -> Result<Source, HubError> {
        resolve::pull_by(self.job(config), name)
    }

    pub(crate) fn resolve(&self, name: &str, config: &Config, may: bool) -> Result<Source, HubError> {
        resolve::resolve_by(self.job(config), name, may)
    }

    pub(crate) fn job<'a>(&'a self, config: &'a Config) -> Job<'a> {
        Job { config, fetch: self, progress: self }
    }
}

/// Returns its bytes, then an error.
struct Torn(std::io::Cursor<Vec<u8>>);

impl Read for Torn {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(std::io::Error::other("torn")),
            n => Ok(n),
        }
    }
}

impl Fetch for World {
    fn get(&self, url: &str, from: u64) -> Result<Reply, FetchError> {
        self.asked.borrow_mut().push(format!("{url} {from}"));
        if self.pages.is_empty() {
            return Err(FetchError::Unreachable("no route".to_string()));
        }
        let page = self.pages.get(url).ok_or(FetchError::Status(404))?;
        let rest = page[from as usize..].to_vec();
        let is_file = url.contains("/resolve/");
        let body: Box<dyn Read> = match self.breaks_after.get().filter(|_| is_file) {
            Some(n) if n < rest.len() => Box::new(Torn(std::io::Cursor::new(rest[..n].to_vec()))),
            _ => Box::new(std::io::Cursor::new(rest)),
        };
        Ok(Reply { from, body })
    }

    fn run(&self, command: Program<'_>, _stopped: &dyn Fn() -> bool) -> Result<(), String> {
        let Program { name: program, args, folder } = command;
        let args: Vec<&str> = args.iter().map(|a| a.to_str().unwrap()).collect();
        self.asked.borrow_mut().push(format!("{program} {}", args.join(" ")));
        let spec = args.iter().find(|a| self.packages.contains_key(**a));
        match (program, spec) {
            // the fake archive contains the package's name, which is enough to unpack it
            ("python3", Some(spec)) => fs::write(folder.join("a-1.whl"), spec),
            ("npm", Some(spec)) => fs::write(folder.join("a-1.tgz"), spec),
            ("python3", None) if args[1] == "pip" => {
                return Err("ERROR: no matching distribution".to_string());
            }
            ("python3" | "tar", None) => {
                let archive = args.iter().find(|a| a.ends_with(".whl") || a.ends_with(".tgz")).unwrap();
                let (member, bytes) = &self.packages[&fs::read_to_string(archive).unwrap()];
                let path = folder.join(member);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes)
            }
            _ => return Err("No such file or directory".to_string()),
        }
        .map_err(|e| e.to_string())
    }
}

impl Progress for World {
    fn begin(&self, _label: &str, _total: Option<u64>) {}
    fn at(&self, _done: u64) {}
    fn end(&self) {}
    fn note(&self, sentence: &str) {
        self.notes.borrow_mut().push(sentence.to_string());
    }
    fn stopped(&self) -> bool {
        self.stopped.get()
    }
}
