//! The hub's cache on disk: `models--org--repo/{blobs/<etag>, snapshots/<commit>/<file>, refs/main}`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::name::RepoName;
use crate::select;
use crate::{Config, HubError};

/// Maximum depth of folders searched in a snapshot.
const MAX_DEPTH: usize = 4;

/// The cached model that `name` refers to; `None` if there is none.
pub(crate) fn find(name: &RepoName, config: &Config) -> Result<Option<PathBuf>, HubError> {
    let mut several = None;
    for snapshot in snapshots(&name.folder(config)) {
        let files = files(&snapshot);
        match select::choose(&name.repo, files.iter().map(String::as_str), name.quant.as_deref()) {
            Ok(chosen) => return Ok(Some(chosen.path(&snapshot))),
            Err(error @ HubError::Several { .. }) => several = several.or(Some(error)),
            Err(_) => {} // missing or incomplete: the next snapshot may have it
        }
    }
    several.map_or(Ok(None), Err)
}

/// All files of the cached GGUF model that `name` refers to, the first one first.
pub(crate) fn find_files(name: &RepoName, config: &Config) -> Option<Vec<PathBuf>> {
    snapshots(&name.folder(config)).iter().find_map(|snapshot| {
        let files = files(snapshot);
        let chosen = select::choose(&name.repo, files.iter().map(String::as_str), name.quant.as_deref());
        Some(chosen.ok()?.files().iter().map(|file| snapshot.join(file)).collect())
    })
}

/// The snapshots of a repository's folder: `refs/main` first, then by age, newest first.
pub(crate) fn snapshots(folder: &Path) -> Vec<PathBuf> {
    let main = folder.join("refs/main");
    // a FIFO is never read: that would wait
    let main = Some(main).filter(|main| main.is_file()).and_then(|main| fs::read_to_string(main).ok());
    let main = main.unwrap_or_default();
    let age = |path: &Path| path.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut found: Vec<_> = entries(&folder.join("snapshots")).filter(|path| path.is_dir()).collect();
    let is_main = |path: &Path| path.file_name().is_some_and(|n| n == main.trim());
    found.sort_by_key(|path| (!is_main(path), std::cmp::Reverse(age(path))));
    found
}

/// The complete files of a snapshot, with the hub's names.
pub(crate) fn files(snapshot: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![(snapshot.to_path_buf(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        for path in entries(&folder) {
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
            let name = format!("{prefix}{name}");
            // is_file follows the link: a link without its blob is not a file
            if path.is_file() {
                found.push(name);
            } else if path.is_dir() && depth < MAX_DEPTH {
                folders.push((path, name + "/", depth + 1));
            }
        }
    }
    found.sort();
    found
}

/// The cached repositories, as `org/repo`.
pub(crate) fn repositories(config: &Config) -> Vec<RepoName> {
    let repo = |path: PathBuf| {
        let folder = path.file_name()?.to_str()?.strip_prefix("models--")?.to_string();
        Some(RepoName { repo: folder.replacen("--", "/", 1), quant: None })
    };
    let mut found: Vec<RepoName> = entries(&config.hub_cache).filter_map(repo).collect();
    found.sort_by(|a, b| a.repo.cmp(&b.repo));
    found
}

/// Links `snapshot/file` to the blob `key`: a relative symlink, or a hard link on systems without symlinks.
pub(crate) fn link(folder: &Path, snapshot: &Path, file: &str, key: &str) -> Result<(), HubError> {
    let pointer = snapshot.join(file);
    let parent = pointer.parent().unwrap_or(snapshot);
    fs::create_dir_all(parent).map_err(HubError::io(parent))?;
    let up = "../".repeat(2 + file.matches('/').count());
    let target = format!("{up}blobs/{key}");
    if fs::read_link(&pointer).is_ok_and(|old| old == Path::new(&target)) {
        return Ok(());
    }
    match fs::remove_file(&pointer) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(HubError::io(&pointer)(e)),
        _ => {}
    }
    #[cfg(unix)]
    let linked = {
        let _ = folder;
        std::os::unix::fs::symlink(&target, &pointer)
    };
    #[cfg(not(unix))]
    let linked = fs::hard_link(folder.join("blobs").join(key), &pointer);
    linked.map_err(HubError::io(&pointer))
}

/// The entries of a folder; none if it does not exist.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
