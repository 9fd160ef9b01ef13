//! `tern rm`: deletes downloaded models.

use std::fs;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use tern::hub::{self, Entry, Location};
use tern::{environment, units};

use crate::args::RmArgs;
use crate::error::{CliError, CliResult};
use crate::nearest;

pub(crate) fn remove(args: &RmArgs) -> CliResult<()> {
    let config = environment::hub_config()?;
    let entries = hub::list(&config);
    // all names are checked before the first file is deleted
    let found: Vec<&Entry> =
        args.models.iter().map(|name| downloaded(name, &entries)).collect::<CliResult<_>>()?;
    for entry in found {
        let size = units::bytes(entry.bytes);
        if !args.yes && !agreed(&format!("delete {} ({size})?", entry.name))? {
            continue;
        }
        delete(entry)?;
        writeln!(std::io::stdout(), "{} is deleted ({size})", entry.name)?;
    }
    Ok(())
}

/// Deletes the files of a model: links themselves, and of what they point to only blobs of the same repository that no other
/// snapshot links to.
fn delete(entry: &Entry) -> CliResult<()> {
    let Location::File(path) = &entry.location else { return Ok(()) };
    let failed = |file: &Path, e: std::io::Error| CliError::message(format!("{}: {e}", file.display()));
    for file in files_of(path).map_err(|e| failed(path, e))? {
        let blob = blob_of(&file);
        fs::remove_file(&file).map_err(|e| failed(&file, e))?;
        let Some(blob) = blob else { continue };
        let snapshots = blob.ancestors().nth(2).map(|repo| repo.join("snapshots"));
        let others = snapshots.map_or(vec![], |snapshots| leaves(&snapshots));
        if !others.iter().any(|other| blob_of(other).as_ref() == Some(&blob)) {
            fs::remove_file(&blob).map_err(|e| failed(&blob, e))?;
        }
    }
    Ok(())
}

/// All shards of a GGUF file, or all that is in a snapshot of safetensors.
fn files_of(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if fs::symlink_metadata(path)?.is_dir() {
        return Ok(leaves(path));
    }
    let stem = |path: &Path| {
        Some(path.file_name()?.to_str()?.rsplit_once("-of-")?.0.rsplit_once('-')?.0.to_string())
    };
    let (Some(first), Some(folder)) = (stem(path), path.parent()) else {
        return Ok(vec![path.to_path_buf()]);
    };
    let files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    Ok(files.filter(|file| stem(file).as_ref() == Some(&first)).collect())
}

/// The blob of the repository that a link of a snapshot points to; none if it points elsewhere.
fn blob_of(link: &Path) -> Option<PathBuf> {
    let target = fs::read_link(link).ok()?;
    let repo = link
        .ancestors()
        .find(|folder| folder.file_name().is_some_and(|name| name == "snapshots"))?
        .parent()?;
    let blobs = repo.join("blobs");
    let found = link.parent()?.join(&target).canonicalize().ok()?;
    (found.parent()? == blobs.canonicalize().ok()?).then(|| blobs.join(found.file_name().unwrap_or_default()))
}

/// All files and links below a folder. Links are not followed.
fn leaves(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => leaves(&entry.path()),
        _ => vec![entry.path()],
    };
    entries.flat_map(below).collect()
}

/// The model of this name, if it is in the cache.
fn downloaded<'a>(name: &str, entries: &'a [Entry]) -> CliResult<&'a Entry> {
    let Some(entry) = entries.iter().find(|entry| entry.is_named(name)) else {
        let local = entries.iter().filter(|entry| matches!(entry.location, Location::File(_)));
        let tip = nearest::tip(name, local.map(|entry| entry.name.as_str()));
        let text = match Path::new(name).exists() {
            true => format!("{name} is not in the cache: `rm` deletes only what was downloaded"),
            false => format!("{name} is not downloaded{tip}: `tern list` has the names"),
        };
        return Err(CliError::message(text));
    };
    match entry.location {
        Location::File(_) => Ok(entry),
        Location::Embedded => Err(CliError::message(format!("{name} is embedded in the binary"))),
        Location::Missing => Err(CliError::message(format!("{name} is not downloaded"))),
    }
}

/// Asks on a terminal; elsewhere --yes is required.
fn agreed(question: &str) -> CliResult<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(CliError::message(format!("{question} This is not a terminal: use --yes")));
    }
    let mut err = std::io::stderr();
    write!(err, "tern: {question} [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
