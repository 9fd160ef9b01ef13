//! Downloading a repository of the hub into the hub's cache.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;

use serde::Deserialize;

use crate::fetch::{Fetch, FetchError, POLL};
use crate::name::RepoName;
use crate::progress::Work;
use crate::{Config, HubError, Progress, cache, digest, select};

/// Limit of a listing in bytes.
const LISTING: u64 = 64 << 20;
/// How often an interrupted download is resumed.
const ATTEMPTS: usize = 5;

/// What every step of a download needs.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) config: &'a Config,
    pub(crate) fetch: &'a dyn Fetch,
    pub(crate) progress: &'a dyn Progress,
}

/// The hub's listing of a repository at one commit.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default, rename = "blobId")]
    blob_id: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// One file to fetch.
struct Blob<'a> {
    file: &'a str,
    /// Its name in the cache, the hub's etag: the SHA-256, or the git hash of a small file.
    key: &'a str,
    bytes: u64,
    sha256: Option<&'a str>,
}

/// Downloads the model `name` at `revision` and returns the file or folder to open;
/// `sha256` is the expected hash.
pub(crate) fn pull(
    job: Job<'_>,
    name: &RepoName,
    revision: &str,
    sha256: Option<&str>,
) -> Result<PathBuf, HubError> {
    let listing = listing(job, &name.repo, revision)?;
    let files = listing.siblings.iter().map(|s| s.rfilename.as_str());
    let chosen = select::choose(&name.repo, files, name.quant.as_deref())?;
    let folder = name.folder(job.config);
    let snapshot = folder.join("snapshots").join(&listing.sha);
    for file in chosen.files() {
        let blob = blob(&name.repo, &listing, file)?;
        if let Some(want) = sha256.filter(|want| *want != blob.key) {
            let (file, want) = (file.clone(), want.to_string());
            return Err(HubError::Hash { file, want, got: blob.key.to_string() });
        }
        let url = format!("{}/{}/resolve/{}/{}", job.config.endpoint, name.repo, listing.sha, escaped(file));
        fetch(job, &name.repo, &url, &folder, &blob)?;
        cache::link(&folder, &snapshot, file, blob.key)?;
    }
    // last, so that a reference never points to a snapshot without its files
    if revision == "main" {
        write_ref(&folder.join("refs"), revision, &listing.sha)?;
    }
    Ok(chosen.path(&snapshot))
}

fn listing(job: Job<'_>, repo: &str, revision: &str) -> Result<Listing, HubError> {
    let url = format!("{}/api/models/{repo}/revision/{revision}?blobs=true", job.config.endpoint);
    let _work = Work::begin(job.progress, &format!("requesting {repo}"), None);
    let reply = job.fetch.get(&url, 0).map_err(|e| failed(job.config, repo, e))?;
    let mut text = Vec::new();
    let read = reply.body.take(LISTING).read_to_end(&mut text);
    read.map_err(|e| failed(job.config, repo, FetchError::of_body(&e)))?;
    let wrong = |why: String| HubError::Reply { repo: repo.to_string(), why };
    let listing: Listing = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    if !is_hex(&listing.sha) {
        return Err(wrong(format!("'{}' is not a commit", listing.sha)));
    }
    Ok(listing)
}

/// The blob of `file`; everything that becomes part of a path is checked.
fn blob<'a>(repo: &str, listing: &'a Listing, file: &str) -> Result<Blob<'a>, HubError> {
    let wrong = |why: &str| HubError::Reply { repo: repo.to_string(), why: format!("{file}: {why}") };
    let sibling = listing.siblings.iter().find(|s| s.rfilename == file).ok_or_else(|| wrong("not listed"))?;
    let steps = || sibling.rfilename.split('/');
    if steps().any(|s| s.is_empty() || s == "." || s == "..") || file.contains(['\\', ':']) {
        return Err(wrong("not a path inside the repository"));
    }
    let (key, bytes, sha256) = match &sibling.lfs {
        Some(lfs) => (&lfs.sha256, Some(lfs.size), Some(lfs.sha256.as_str())),
        None => (sibling.blob_id.as_ref().ok_or_else(|| wrong("missing hash"))?, sibling.size, None),
    };
    if !is_hex(key) {
        return Err(wrong("invalid hash"));
    }
    let bytes = bytes.ok_or_else(|| wrong("missing size"))?;
    Ok(Blob { file: &sibling.rfilename, key, bytes, sha256 })
}

/// Downloads one blob, resuming an earlier attempt, and renames it once it is complete.
fn fetch(job: Job<'_>, repo: &str, url: &str, folder: &Path, blob: &Blob<'_>) -> Result<(), HubError> {
    let blobs = folder.join("blobs");
    let path = blobs.join(blob.key);
    let there = |path: &Path| path.metadata().is_ok_and(|m| m.len() == blob.bytes);
    if there(&path) {
        return Ok(());
    }
    fs::create_dir_all(&blobs).map_err(HubError::io(&blobs))?;
    let _lock = lock(job, folder, blob)?;
    if there(&path) {
        return Ok(()); // another process downloaded it while this one waited
    }
    let partial = blobs.join(format!("{}.incomplete", blob.key));
    let work = Work::begin(job.progress, select::base(blob.file), Some(blob.bytes));
    for attempt in 1.. {
        match more(job, url, &partial, blob) {
            Ok(()) => break,
            Err(Broken::Local(error)) => return Err(error),
            Err(Broken::Wire { error, progressed }) if attempt == ATTEMPTS || !progressed => {
                return Err(failed(job.config, repo, error));
            }
            Err(Broken::Wire { .. }) => {}
        }
    }
    drop(work);
    let checked = match blob.sha256 {
        Some(sha256) => {
            let _work = Work::begin(job.progress, &format!("checking {}", select::base(blob.file)), None);
            digest::check(&partial, blob.file, blob.bytes, sha256)
        }
        None => match fs::metadata(&partial).map_err(HubError::io(&partial))?.len() {
            got if got == blob.bytes => Ok(()),
            got => Err(HubError::Size { file: blob.file.to_string(), want: blob.bytes, got }),
        },
    };
    if checked.is_err() {
        // a file with a wrong hash cannot be resumed
        let _ = fs::remove_file(&partial);
    }
    checked?;
    fs::rename(&partial, &path).map_err(HubError::io(&path))
}

/// Why a download stopped.
enum Broken {
    /// The disk failed, or the caller has stopped it.
    Local(HubError),
    Wire {
        error: FetchError,
        progressed: bool,
    },
}

/// Appends the missing part of the blob to `partial`.
fn more(job: Job<'_>, url: &str, partial: &Path, blob: &Blob<'_>) -> Result<(), Broken> {
    let disk = |e| Broken::Local(HubError::io(partial)(e));
    let mut out = OpenOptions::new().create(true).append(true).open(partial).map_err(disk)?;
    let mut done = out.metadata().map_err(disk)?.len();
    if done == blob.bytes && done > 0 {
        return Ok(());
    }
    if done > blob.bytes {
        out.set_len(0).map_err(disk)?;
        done = 0;
    }
    let wire = |error, progressed| Broken::Wire { error, progressed };
    let mut reply = job.fetch.get(url, done).map_err(|e| wire(e, false))?;
    if reply.from != done {
        out.set_len(0).map_err(disk)?;
        done = 0;
    }
    let start = done;
    let mut buffer = vec![0; digest::CHUNK];
    while done <= blob.bytes {
        if job.progress.stopped() {
            return Err(Broken::Local(HubError::Stopped));
        }
        job.progress.at(done);
        match reply.body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                out.write_all(&buffer[..n]).map_err(disk)?;
                done += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(wire(FetchError::of_body(&e), done > start)),
        }
    }
    if done < blob.bytes {
        let why = format!("the connection ended at byte {done} of {}", blob.bytes);
        return Err(wire(FetchError::Unreachable(why), done > start));
    }
    Ok(())
}

/// The lock that other tools of the hub use for the same blob.
fn lock(job: Job<'_>, folder: &Path, blob: &Blob<'_>) -> Result<File, HubError> {
    let locks = job.config.hub_cache.join(".locks").join(folder.file_name().unwrap_or_default());
    fs::create_dir_all(&locks).map_err(HubError::io(&locks))?;
    let path = locks.join(format!("{}.lock", blob.key));
    let file = File::create(&path).map_err(HubError::io(&path))?;
    wait_for(job, &file, blob.file)?;
    Ok(file)
}

/// Waits for the lock that another download of `what` holds.
pub(crate) fn wait_for(job: Job<'_>, lock: &File, what: &str) -> Result<(), HubError> {
    if lock.try_lock().is_ok() {
        return Ok(());
    }
    job.progress.note(&format!("waiting for another process that is downloading {what}"));
    while lock.try_lock().is_err() {
        if job.progress.stopped() {
            return Err(HubError::Stopped);
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn write_ref(refs: &Path, name: &str, commit: &str) -> Result<(), HubError> {
    fs::create_dir_all(refs).map_err(HubError::io(refs))?;
    let path = refs.join(name);
    fs::write(&path, commit).map_err(HubError::io(&path))
}

fn failed(config: &Config, repo: &str, error: FetchError) -> HubError {
    let (repo, endpoint) = (repo.to_string(), config.endpoint.clone());
    match error {
        FetchError::Unreachable(why) => HubError::Unreachable { endpoint, why },
        FetchError::Slow(why) => HubError::Slow { endpoint, why },
        FetchError::Status(status) => HubError::Status { repo, status, meaning: meaning(status) },
    }
}

fn meaning(status: u16) -> &'static str {
    match status {
        401 => "no such repository, or it is private: set HF_TOKEN",
        403 => "the repository is gated: accept its terms on the hub and set HF_TOKEN",
        404 => "no such repository, revision or file",
        429 => "too many requests: try again later",
        500..=599 => "internal error of the hub: try again later",
        _ => "unexpected status",
    }
}

fn is_hex(text: &str) -> bool {
    text.len() >= 8 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Percent-encodes a path of the hub.
fn escaped(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~' | b'/');
    path.bytes().map(|b| if plain(b) { (b as char).to_string() } else { format!("%{b:02X}") }).collect()
}
