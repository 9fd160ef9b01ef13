//! What is on this machine.

use std::path::{Path, PathBuf};

use crate::known::KNOWN;
use crate::name::RepoName;
use crate::resolve::present;
use crate::{Config, cache, select};

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Inside the binary.
    Embedded,
    /// In this file (the first, where it is split).
    Here(PathBuf),
    /// Not on this machine; `tern pull` fetches it.
    Absent,
}

/// A model that can be named after `-m`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What to write after `-m`.
    pub name: String,
    /// One line on what it is: of the table, or the file's name in its repository.
    pub about: String,
    /// The licence, where the table says it.
    pub licence: Option<&'static str>,
    /// The size of all its files; 0 for an embedded model.
    pub bytes: u64,
    /// Where it is.
    pub place: Place,
}

/// The known names, then the GGUF models in the hub cache that are none of them.
pub fn list(config: &Config) -> Vec<Entry> {
    let mut entries: Vec<Entry> = KNOWN
        .iter()
        .map(|known| Entry {
            name: known.name.to_string(),
            about: known.about.to_string(),
            licence: Some(known.licence),
            bytes: known.bytes,
            place: match present(known, config) {
                _ if known.embedded() => Place::Embedded,
                Some(path) => Place::Here(path),
                None => Place::Absent,
            },
        })
        .collect();
    for repo in cache::repositories(config) {
        for entry in cached(&repo, config) {
            if entries.iter().all(|e| e.place != entry.place) {
                entries.push(entry);
            }
        }
    }
    entries
}

/// The complete GGUF models of one cached repository, each once however many snapshots have it.
fn cached(repo: &RepoName, config: &Config) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for snapshot in cache::snapshots(&repo.folder(config)) {
        let files = cache::files(&snapshot);
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
                place: Place::Here(snapshot.join(&about)),
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
