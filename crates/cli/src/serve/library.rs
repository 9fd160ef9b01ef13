//! The models that `tern serve` loads on request: those of the flags, of a folder, or of `tern list`.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tern::hub::{self, Location};
use tern::{LoadOptions, Progress, environment};
use tern_server::{Library, LibraryModel, ServedModel};

use super::{load, short_name};
use crate::args::ServeArgs;

/// Where the models come from.
enum Origin {
    /// `-m A -m B`
    Named(Vec<String>),
    /// `--models FOLDER`
    Folder(PathBuf),
    /// No flag: every model of `tern list`.
    Local,
}

/// The library of a server.
pub(super) struct LocalLibrary {
    origin: Origin,
    args: ServeArgs,
}

/// A model, and what it is loaded by.
struct Entry {
    model: LibraryModel,
    target: String,
}

/// The model of requests without a name, if it is there.
const DEFAULT: &str = "smollm2";

impl LocalLibrary {
    /// None if the flags name one model, which is then loaded at the start.
    pub(super) fn of(args: &ServeArgs) -> Option<LocalLibrary> {
        let origin = match (&args.models, args.model.model.len(), &args.model.hf) {
            (Some(folder), ..) => Origin::Folder(folder.clone()),
            (None, 0, None) => Origin::Local,
            (None, 0 | 1, _) => return None,
            (None, ..) => Origin::Named(args.model.model.clone()),
        };
        Some(LocalLibrary { origin, args: args.clone() })
    }

    fn entries(&self) -> Vec<Entry> {
        match &self.origin {
            Origin::Named(names) => names.iter().map(|name| named(name)).collect(),
            Origin::Folder(folder) => files(folder),
            Origin::Local => {
                let Ok(config) = environment::hub_config() else { return vec![] };
                let mut entries: Vec<Entry> = hub::list(&config).iter().filter_map(local).collect();
                entries.sort_by_key(|entry| entry.model.name != DEFAULT);
                entries
            }
        }
    }

    fn target(&self, name: &str) -> Option<String> {
        let found = self.entries().into_iter().find(|entry| entry.model.name == name || entry.target == name);
        let known = || matches!(self.origin, Origin::Local).then(|| downloadable(name)).flatten();
        found.map(|entry| entry.target).or_else(known)
    }
}

/// A model of the flags, which may have to be downloaded.
fn named(target: &str) -> Entry {
    let path = Path::new(target);
    Entry { model: of_file(&short_name(target), path), target: target.to_owned() }
}

/// A known name that is not downloaded yet.
fn downloadable(name: &str) -> Option<String> {
    let entries = hub::list(&environment::hub_config().ok()?);
    entries.into_iter().find(|entry| entry.name == name).map(|entry| entry.name)
}

fn local(entry: &hub::Entry) -> Option<Entry> {
    let model = match &entry.location {
        Location::Missing => return None,
        Location::Embedded => {
            LibraryModel { name: entry.name.clone(), bytes: tern::STORIES.len() as u64, modified: 0 }
        }
        Location::File(path) => LibraryModel { bytes: entry.bytes, ..of_file(&entry.name, path) },
    };
    Some(Entry { model, target: entry.name.clone() })
}

/// The models in a folder: GGUF files, of a split one the first, and folders with a `config.json`.
fn files(folder: &Path) -> Vec<Entry> {
    let Ok(listed) = std::fs::read_dir(folder) else { return vec![] };
    let entry = |path: PathBuf| {
        let target = path.to_str()?.to_owned();
        let file = path.file_name()?.to_str()?;
        let name = match file.strip_suffix(".gguf") {
            Some(stem) => match stem.rsplit_once("-00001-of-") {
                Some((stem, _)) => stem,
                None if stem.contains("-of-")
                    && stem.rsplit('-').nth(2).is_some_and(|part| part.parse::<u32>().is_ok()) =>
                {
                    return None;
                }
                None => stem,
            },
            None if path.join("config.json").is_file() => file,
            None => return None,
        };
        Some(Entry { model: of_file(name, &path), target })
    };
    let mut entries: Vec<Entry> = listed.flatten().filter_map(|item| entry(item.path())).collect();
    entries.sort_by(|a, b| a.model.name.cmp(&b.model.name));
    entries
}

fn of_file(name: &str, path: &Path) -> LibraryModel {
    let metadata = path.metadata().ok();
    let modified = metadata.as_ref().and_then(|file| file.modified().ok());
    let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    LibraryModel {
        name: name.to_owned(),
        bytes: metadata.map_or(0, |file| file.len()),
        modified: modified.map_or(0, |time| time.as_secs()),
    }
}

impl Library for LocalLibrary {
    fn list(&self) -> Vec<LibraryModel> {
        self.entries().into_iter().map(|entry| entry.model).collect()
    }

    fn find(&self, name: &str) -> Option<String> {
        let entries = self.entries();
        let found = entries.iter().find(|entry| entry.model.name == name || entry.target == name);
        let known = || matches!(self.origin, Origin::Local).then(|| downloadable(name)).flatten();
        found.map(|entry| entry.model.name.clone()).or_else(known)
    }

    fn load(&self, name: &str) -> Result<ServedModel, String> {
        let target = self.target(name).ok_or_else(|| format!("{name}: there is no such model"))?;
        load(&self.args, &target, vec![name.to_owned()]).map_err(|error| error.to_string())
    }

    fn pull(&self, name: &str, progress: &dyn Progress) -> Result<(), String> {
        match self.origin {
            Origin::Local => {
                let pulled = tern::pull(name, &LoadOptions::default(), progress);
                pulled.map(|_| ()).map_err(|error| error.to_string())
            }
            _ => {
                Err("the models of this server are fixed: start it without -m and --models to download"
                    .into())
            }
        }
    }

    fn delete(&self, name: &str) -> Result<(), String> {
        if !matches!(self.origin, Origin::Local) {
            return Err(
                "the models of this server are fixed: start it without -m and --models to delete".into()
            );
        }
        let config = environment::hub_config().map_err(|error| error.to_string())?;
        let entry = hub::list(&config).into_iter().find(|entry| entry.name == name);
        match entry.map(|entry| entry.location) {
            None | Some(Location::Missing) => Err(format!("{name} is not downloaded")),
            Some(Location::Embedded) => Err(format!("{name} is embedded in the binary")),
            Some(Location::File(path)) => {
                // a file of the hub's cache is a link to its contents
                let contents = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
                let mut files = vec![contents, path];
                files.dedup();
                for file in files {
                    std::fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_files_split_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "notes.txt"] {
            std::fs::write(folder.path().join(file), "xyz").unwrap();
        }
        std::fs::create_dir(folder.path().join("c")).unwrap();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        std::fs::write(folder.path().join("c/config.json"), "{}").unwrap();
        let entries = files(folder.path());
        let names: Vec<&str> = entries.iter().map(|entry| entry.model.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(entries[0].target.ends_with("a-00001-of-00002.gguf"));
        assert_eq!(entries[1].model.bytes, 3);
        assert!(files(&folder.path().join("missing")).is_empty());
    }
}
