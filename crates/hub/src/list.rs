//! Listing local models and known names.

use std::path::{Path, PathBuf};

use crate::known::KNOWN;
use crate::name::RepoName;
use crate::resolve::present;
use crate::select::Chosen;
use crate::short::{SHORT, Short};
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
    /// Other names that mean the same file.
    pub aliases: Vec<String>,
    /// A one-line description from the table, or the file's name in its repository.
    pub about: String,
    /// The licence, if the table has it.
    pub licence: Option<&'static str>,
    /// The size of all its files; 0 for an embedded model.
    pub bytes: u64,
    /// The place of its files.
    pub location: Location,
}

impl Entry {
    /// Whether the model has this name.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// The known names, then the short names, then all other models in the hub cache.
pub fn list(config: &Config) -> Vec<Entry> {
    let mut entries: Vec<Entry> = KNOWN
        .iter()
        .map(|known| Entry {
            name: known.name.to_string(),
            aliases: vec![],
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
    entries.extend(SHORT.iter().map(|short| {
        let (bytes, location) = match cache::find_files(&short.repo(), config) {
            Some(files) => (files.iter().map(|f| size(f)).sum(), Location::File(files[0].clone())),
            None => (short.bytes, Location::Missing),
        };
        let (name, about) = (short.names[0].to_string(), short.about.to_string());
        Entry { name, aliases: aliases(short), about, licence: None, bytes, location }
    }));
    for repo in cache::repositories(config) {
        for entry in cached(&repo, config) {
            if entries.iter().all(|e| e.location != entry.location) {
                entries.push(entry);
            }
        }
    }
    entries
}

/// The other names of a short name's file.
fn aliases(short: &Short) -> Vec<String> {
    let latest = short.names.iter().filter(|name| !name.contains(':')).map(|name| format!("{name}:latest"));
    let others = short.names[1..].iter().map(|name| name.to_string());
    let label = select::label_of(short.file).map(|label| format!("{}:{label}", short.repo));
    others.chain(latest).chain([short.repo().to_string()]).chain(label).collect()
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
                let (name, aliases) = (repo.repo.clone(), vec![]);
                entries.push(Entry { name, aliases, about, licence: None, bytes, location });
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
                aliases: vec![],
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
