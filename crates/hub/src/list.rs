//! Listing local models and known names.

use std::path::{Path, PathBuf};

use crate::known::KNOWN;
use crate::name::RepoName;
use crate::resolve::present;
use crate::select::Chosen;
use crate::{Config, cache, select};

/// Where a model is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In the binary.
    Embedded,
    /// In this file (the first one of a split model) or folder.
    File(PathBuf),
    /// Not downloaded.
    Missing,
}

/// A model with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name to load it by.
    pub name: String,
    /// A one-line description from the table, or the file's name in its repository.
    pub about: String,
    /// The licence, if the table has it.
    pub licence: Option<&'static str>,
    /// The size of all its files; 0 for an embedded model.
    pub bytes: u64,
    /// Where it is stored.
    pub location: Location,
}

/// The known names, then all other models in the hub cache.
pub fn list(config: &Config) -> Vec<Entry> {
    let mut entries: Vec<Entry> = KNOWN
        .iter()
        .map(|known| Entry {
            name: known.name.to_string(),
            about: known.about.to_string(),
            licence: Some(known.licence),
            bytes: known.bytes,
            location: match present(known, config) {
                _ if known.embedded() => Location::Embedded,
                Some(path) => Location::File(path),
                None => Location::Missing,
            },
        })
        .collect();
    for repo in cache::repositories(config) {
        for entry in cached(&repo, config) {
            if entries.iter().all(|e| e.location != entry.location) {
                entries.push(entry);
            }
        }
    }
    entries
}

/// The complete models of one cached repository, without duplicates from several snapshots.
fn cached(repo: &RepoName, config: &Config) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for snapshot in cache::snapshots(&repo.folder(config)) {
        let files = cache::files(&snapshot);
        if let Ok(Chosen::Folder(files)) = select::choose(&repo.repo, files.iter().map(String::as_str), None)
        {
            let about = "safetensors".to_string();
            if entries.iter().all(|e| e.about != about) {
                let bytes = files.iter().map(|f| size(&snapshot.join(f))).sum();
                let location = Location::File(snapshot);
                entries.push(Entry { name: repo.repo.clone(), about, licence: None, bytes, location });
            }
            continue;
        }
        let groups = select::ggufs(files.iter().map(String::as_str));
        for group in groups.iter().filter(|g| g.files.len() == g.parts) {
            let about = group.files[0].clone();
            if entries.iter().any(|e| e.about == about) {
                continue;
            }
            let same = groups.iter().filter(|g| g.label() == group.label()).count();
            let quant = group.label().filter(|_| same == 1);
            let quant = quant.unwrap_or_else(|| select::base(&about).to_string());
            entries.push(Entry {
                name: RepoName { repo: repo.repo.clone(), quant: Some(quant) }.to_string(),
                bytes: group.files.iter().map(|f| size(&snapshot.join(f))).sum(),
                location: Location::File(snapshot.join(&about)),
                licence: None,
                about,
            });
        }
    }
    entries
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |m| m.len())
}
