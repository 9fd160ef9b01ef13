//! The files of models: those in a folder, and all that belong to one.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tern_server::LibraryModel;

/// The models in a folder by name: GGUF files, of a split one the first, and folders with a `config.json`.
/// What is not a regular file or a folder is none.
pub(super) fn models_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let entry = |path: PathBuf| {
        let file = path.file_name()?.to_str()?;
        let name = match file.strip_suffix(".gguf") {
            Some(_) if !path.is_file() => return None,
            // the tower of a model's images is no model
            Some(stem) if stem.to_lowercase().contains("mmproj") => return None,
            Some(stem) => match shard(stem) {
                Some((prefix, 1, _)) => prefix,
                Some(_) => return None,
                None => stem,
            },
            None if path.join("config.json").is_file() => file,
            None => return None,
        };
        Some((name.to_owned(), path))
    };
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut models: Vec<_> = listed.filter_map(|item| entry(item.path())).collect();
    models.sort();
    models
}

/// The prefix, number and count of `prefix-00001-of-00003`.
fn shard(stem: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

/// The regular files of the model at `path`: all shards of a split one, and what is in a folder.
pub(super) fn files_of(path: &Path) -> Vec<PathBuf> {
    let mut files = match path.file_stem().and_then(|stem| stem.to_str()).and_then(shard) {
        _ if path.is_dir() => {
            let listed = std::fs::read_dir(path).into_iter().flatten().flatten();
            listed.map(|item| item.path()).collect()
        }
        Some((prefix, _, count)) if count <= 99_999 => (1..=count)
            .map(|number| path.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf")))
            .collect(),
        _ => vec![path.to_path_buf()],
    };
    files.retain(|file| file.is_file());
    files.sort();
    files
}

/// A model with the size and the time of its files.
pub(super) fn of_files(name: &str, path: &Path) -> LibraryModel {
    let metadata: Vec<_> = files_of(path).iter().filter_map(|file| file.metadata().ok()).collect();
    let modified = metadata.iter().filter_map(|file| file.modified().ok()).max();
    let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    LibraryModel {
        name: name.to_owned(),
        bytes: metadata.iter().map(|file| file.len()).sum(),
        modified: modified.map_or(0, |time| time.as_secs()),
        ..LibraryModel::default()
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
        std::fs::create_dir(folder.path().join("folder.gguf")).unwrap();
        std::fs::write(folder.path().join("c/config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("c/model.safetensors"), "weights").unwrap();
        let fifo = folder.path().join("pipe.gguf");
        assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
        let models = models_in(folder.path());
        let names: Vec<&str> = models.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(models[0].1.ends_with("a-00001-of-00002.gguf"));
        let bytes: Vec<u64> = models.iter().map(|(name, path)| of_files(name, path).bytes).collect();
        assert_eq!(bytes, [6, 3, 9]);
        assert!(models_in(&folder.path().join("missing")).is_empty());
    }
}
