//! Deleting a local model: the links of its files in one snapshot, and the blobs that no other link needs.
//!
//! Links are never followed out of the cache. A blob is removed by its own path, `blobs/NAME` of the same
//! repository, and only if every folder on the way is a real one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::list::{Entry, Location};
use crate::{Config, HubError, cache, groups};

/// Deepest folders of a snapshot that are searched for links.
const MAX_DEPTH: usize = 64;

/// Deletes the files of a model of [`crate::list`]: all shards of a split one, the snapshot of a folder.
pub fn delete(entry: &Entry, config: &Config) -> Result<(), HubError> {
    let path = match &entry.location {
        Location::Missing => return Err(HubError::NotDownloaded { name: entry.name.clone() }),
        Location::Embedded => return Err(HubError::Embedded { name: entry.name.clone() }),
        Location::File(path) => path,
    };
    if path.parent() == Some(&config.models) {
        return remove(path); // a link too is removed itself
    }
    let snapshot = Snapshot::of(path, config)?;
    for file in snapshot.files_of(path)? {
        snapshot.delete(&file)?;
    }
    snapshot.remove_if_empty();
    Ok(())
}

/// A snapshot in the hub's cache.
struct Snapshot {
    /// `models--org--repo`
    repo: PathBuf,
    /// `models--org--repo/snapshots/COMMIT`
    folder: PathBuf,
}

impl Snapshot {
    /// The snapshot that a model's file or folder is in.
    fn of(path: &Path, config: &Config) -> Result<Snapshot, HubError> {
        let outside = || HubError::Outside { path: path.to_path_buf() };
        let inside = path.strip_prefix(&config.hub_cache).map_err(|_| outside())?;
        let mut names = inside.components().map(|part| match part {
            Component::Normal(name) => name.to_str().ok_or_else(outside),
            _ => Err(outside()),
        });
        let mut next = || names.next().unwrap_or_else(|| Err(outside()));
        let (repo, snapshots, commit) = (next()?, next()?, next()?);
        if !repo.starts_with("models--") || snapshots != "snapshots" {
            return Err(outside());
        }
        let repo = config.hub_cache.join(repo);
        let snapshots = repo.join(snapshots);
        let folder = snapshots.join(commit);
        real_folders([&repo, &snapshots, &folder])?;
        Ok(Snapshot { repo, folder })
    }

    /// The files of the model at `path`: all that is in a snapshot of safetensors, else all shards of the
    /// GGUF file.
    fn files_of(&self, path: &Path) -> Result<Vec<PathBuf>, HubError> {
        if path == self.folder {
            return Ok(leaves(&self.folder));
        }
        let files = cache::files(&self.folder);
        let shards =
            groups::groups(files.iter().map(String::as_str), ".gguf").into_iter().map(|group| group.files);
        let is = |shards: &Vec<String>| shards.iter().any(|file| self.folder.join(file) == path);
        let gone = || HubError::NoSuchPath { path: path.to_path_buf() };
        let shards = shards.into_iter().find(is).ok_or_else(gone)?;
        Ok(shards.iter().map(|file| self.folder.join(file)).collect())
    }

    /// Removes a file or a link of this snapshot, and its blob if nothing else needs it.
    fn delete(&self, file: &Path) -> Result<(), HubError> {
        let parents = file.ancestors().skip(1).take_while(|folder| *folder != self.folder);
        real_folders(parents)?;
        let blob = self.blob(file);
        remove(file)?;
        if let Some(blob) = blob.filter(|blob| !self.is_used(blob)) {
            remove(&blob)?;
        }
        for folder in file.ancestors().skip(1).take_while(|folder| *folder != self.folder) {
            let _ = fs::remove_dir(folder); // fails if it is not empty
        }
        Ok(())
    }

    /// The blob that a link points to; none if it is no link, or points elsewhere.
    fn blob(&self, link: &Path) -> Option<PathBuf> {
        let blobs = self.repo.join("blobs");
        let target = normalized(&link.parent()?.join(fs::read_link(link).ok()?))?;
        let is_inside = target.parent() == Some(&blobs);
        let is_real = is_folder(&blobs) && fs::symlink_metadata(&target).is_ok_and(|file| file.is_file());
        (is_inside && is_real).then_some(target)
    }

    /// Whether a link of any snapshot of the repository points to the blob.
    fn is_used(&self, blob: &Path) -> bool {
        leaves(&self.repo.join("snapshots")).iter().any(|link| self.blob(link).as_deref() == Some(blob))
    }

    /// Removes the folder of the snapshot if nothing is left in it, and the references to it.
    fn remove_if_empty(&self) {
        if fs::remove_dir(&self.folder).is_err() {
            return;
        }
        let refs = self.repo.join("refs");
        let commit = self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let leads_here = |file: &PathBuf| fs::read_to_string(file).is_ok_and(|text| text.trim() == commit);
        let regular = |file: &PathBuf| fs::symlink_metadata(file).is_ok_and(|file| file.is_file());
        for file in leaves(&refs).into_iter().filter(regular).filter(leads_here) {
            let _ = fs::remove_file(file);
        }
    }
}

/// Removes one file, or a link without what it points to. One that is gone already is no error.
fn remove(file: &Path) -> Result<(), HubError> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(HubError::io(file)(e)),
        _ => Ok(()),
    }
}

/// Refuses a way that leads through a link.
fn real_folders<'a>(
    folders: impl IntoIterator<Item = &'a (impl AsRef<Path> + ?Sized + 'a)>,
) -> Result<(), HubError> {
    let outside = folders.into_iter().find(|folder| !is_folder(folder.as_ref()));
    outside.map_or(Ok(()), |folder| Err(HubError::Outside { path: folder.as_ref().to_path_buf() }))
}

/// Whether this is a folder and no link to one.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Everything below a folder that is not a folder itself. Links are not followed.
fn leaves(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => folders.push((entry.path(), depth + 1)),
                Ok(kind) if !kind.is_dir() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// A path without `.` and `..`, by its text alone; none if it leaves the root.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if !whole.pop() => return None,
            Component::ParentDir => {}
            part => whole.push(part),
        }
    }
    Some(whole)
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
