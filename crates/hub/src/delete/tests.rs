//! Deleting models from a cache, and from one that another program has filled with links.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::fake::{COMMIT, config};
use crate::list;
use crate::name::RepoName;

const OLD: &str = "1111111111111111111111111111111111111111";

/// A cache with files of one repository as other tools write them.
struct Cache {
    home: TempDir,
    config: Config,
    repo: PathBuf,
}

impl Cache {
    fn new() -> Cache {
        let (home, config) = config();
        let repo = RepoName { repo: "o/r".to_string(), quant: None }.folder(&config);
        fs::create_dir_all(repo.join("blobs")).unwrap();
        Cache { home, config, repo }
    }

    /// A file of a snapshot: a link to a blob of this name.
    fn link(&self, commit: &str, file: &str, blob: &str) -> PathBuf {
        fs::write(self.repo.join("blobs").join(blob), blob).unwrap();
        cache::link(&self.repo, &self.repo.join("snapshots").join(commit), file, blob).unwrap();
        self.repo.join("snapshots").join(commit).join(file)
    }

    /// A file outside the cache.
    fn precious(&self) -> PathBuf {
        let path = self.home.path().join("precious.gguf");
        fs::write(&path, "precious").unwrap();
        path
    }

    fn delete(&self, name: &str) -> Result<(), HubError> {
        let entry = list(&self.config).into_iter().find(|entry| entry.name == name);
        delete(&entry.unwrap_or_else(|| panic!("{name} is not listed")), &self.config)
    }

    fn blobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.repo.join("blobs")).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn names(&self) -> Vec<String> {
        list(&self.config)
            .into_iter()
            .map(|entry| entry.name)
            .filter(|name| name.starts_with("o/r"))
            .collect()
    }
}

#[test]
fn a_model_is_deleted_with_its_blob_and_others_stay() {
    let cache = Cache::new();
    let gone = cache.link(COMMIT, "m-Q4_0.gguf", "four");
    let stays = cache.link(COMMIT, "m-Q8_0.gguf", "eight");
    fs::create_dir_all(cache.repo.join("refs")).unwrap();
    fs::write(cache.repo.join("refs/main"), COMMIT).unwrap();
    cache.delete("o/r:Q4_0").unwrap();
    assert!(fs::symlink_metadata(&gone).is_err() && stays.is_file());
    assert_eq!((cache.blobs(), cache.names()), (vec!["eight".into()], vec!["o/r:Q8_0".into()]));
    cache.delete("o/r:Q8_0").unwrap();
    assert_eq!((cache.blobs(), cache.names()), (vec![], vec![]));
    assert!(!cache.repo.join("snapshots").join(COMMIT).exists() && !cache.repo.join("refs/main").exists());
}

#[test]
fn a_blob_that_another_snapshot_uses_stays() {
    let cache = Cache::new();
    cache.link(COMMIT, "m-Q4_0.gguf", "four");
    let other = cache.link(OLD, "deep/in/a/folder/renamed.gguf", "four");
    cache.delete("o/r:Q4_0").unwrap();
    assert_eq!((cache.blobs(), fs::read_to_string(other).unwrap()), (vec!["four".into()], "four".into()));
}

#[test]
fn all_shards_and_whole_folders_are_deleted() {
    let cache = Cache::new();
    for part in ["1", "2", "3"] {
        cache.link(COMMIT, &format!("Q8_0/m-0000{part}-of-00003.gguf"), part);
    }
    cache.link(COMMIT, "m-Q4_0.gguf", "four");
    cache.delete("o/r:Q8_0").unwrap();
    assert_eq!(cache.blobs(), ["four"]);
    assert!(!cache.repo.join("snapshots").join(COMMIT).join("Q8_0").exists());
    cache.delete("o/r:Q4_0").unwrap();

    for (file, blob) in
        [("config.json", "c"), ("model.safetensors", "w"), ("1_Pooling/config.json", "p"), ("README.md", "r")]
    {
        cache.link(OLD, file, blob);
    }
    cache.delete("o/r").unwrap();
    assert_eq!((cache.blobs(), cache.names()), (vec![], vec![]));
    assert!(!cache.repo.join("snapshots").join(OLD).exists());
}

#[test]
fn a_link_out_of_the_cache_is_removed_and_its_target_is_not() {
    let cache = Cache::new();
    let precious = cache.precious();
    let snapshot = cache.repo.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    let link = snapshot.join("m-Q4_0.gguf");
    // directly, through `..`, and through a blob that is a link
    for target in [precious.clone(), Path::new("../../blobs/../../../../../precious.gguf").to_path_buf()] {
        symlink(&target, &link).unwrap();
        let _ = cache.delete("o/r:Q4_0");
        assert!(precious.is_file());
        let _ = fs::remove_file(&link);
        fs::create_dir_all(&snapshot).unwrap();
    }
    symlink(&precious, cache.repo.join("blobs/evil")).unwrap();
    symlink("../../blobs/evil", &link).unwrap();
    cache.delete("o/r:Q4_0").unwrap();
    assert!(precious.is_file() && fs::symlink_metadata(&link).is_err());
    assert_eq!(cache.blobs(), ["evil"]);
    // a blob of another repository
    let other = cache.config.hub_cache.join("models--o--other/blobs");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("blob"), "x").unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    symlink("../../../models--o--other/blobs/blob", &link).unwrap();
    cache.delete("o/r:Q4_0").unwrap();
    assert!(other.join("blob").is_file());
}

#[test]
fn a_way_through_a_linked_folder_is_refused() {
    let cache = Cache::new();
    let elsewhere = cache.home.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("snapshots").join(COMMIT)).unwrap();
    fs::create_dir_all(elsewhere.join("blobs")).unwrap();
    let precious = elsewhere.join("snapshots").join(COMMIT).join("m-Q4_0.gguf");
    fs::write(&precious, "precious").unwrap();
    let refused = || {
        let error = cache.delete("o/r:Q4_0").unwrap_err();
        assert!(matches!(error, HubError::Outside { .. }), "{error}");
        assert!(precious.is_file());
    };
    let snapshots = cache.repo.join("snapshots");
    // a folder of a snapshot, a snapshot, all snapshots, and the repository
    fs::create_dir_all(snapshots.join(COMMIT)).unwrap();
    symlink(precious.parent().unwrap(), snapshots.join(COMMIT).join("sub")).unwrap();
    refused();
    fs::remove_dir_all(&snapshots).unwrap();
    fs::create_dir_all(&snapshots).unwrap();
    symlink(precious.parent().unwrap(), snapshots.join(COMMIT)).unwrap();
    refused();
    fs::remove_dir_all(&snapshots).unwrap();
    symlink(elsewhere.join("snapshots"), &snapshots).unwrap();
    refused();
    fs::remove_dir_all(&cache.repo).unwrap();
    symlink(&elsewhere, &cache.repo).unwrap();
    refused();
    // and a folder of blobs elsewhere
    fs::remove_file(&cache.repo).unwrap();
    fs::create_dir_all(snapshots.join(COMMIT)).unwrap();
    symlink(precious.parent().unwrap(), cache.repo.join("blobs")).unwrap();
    symlink("../../blobs/m-Q4_0.gguf", snapshots.join(COMMIT).join("m-Q4_0.gguf")).unwrap();
    cache.delete("o/r:Q4_0").unwrap();
    assert!(precious.is_file());
}

#[test]
fn models_that_are_missing_embedded_or_gone_are_errors_or_nothing() {
    let cache = Cache::new();
    assert!(matches!(cache.delete("stories"), Err(HubError::Embedded { .. })));
    assert!(matches!(cache.delete("smollm2"), Err(HubError::NotDownloaded { .. })));
    // the file vanishes after it was listed
    let link = cache.link(COMMIT, "m-Q4_0.gguf", "four");
    let entry = list(&cache.config).into_iter().find(|entry| entry.name == "o/r:Q4_0").unwrap();
    fs::remove_file(&link).unwrap();
    assert!(matches!(delete(&entry, &cache.config), Err(HubError::NoSuchPath { .. })));
    fs::remove_dir_all(&cache.repo).unwrap();
    assert!(matches!(delete(&entry, &cache.config), Err(HubError::Outside { .. })));
    // no model of the list is in another folder
    for path in [
        "/etc/passwd".into(),
        cache.config.hub_cache.join("../../x"),
        cache.config.hub_cache.join("models--a--b/snapshots/../../x"),
    ] {
        let entry = Entry { location: Location::File(path), ..entry.clone() };
        assert!(matches!(delete(&entry, &cache.config), Err(HubError::Outside { .. })));
    }
}

/// A model from packages is a file of Tern's own folder.
#[test]
fn a_link_in_the_own_folder_is_removed_itself() {
    let cache = Cache::new();
    let precious = cache.precious();
    fs::create_dir_all(&cache.config.models).unwrap();
    let link = cache.config.models.join("0123-toy.gguf");
    symlink(&precious, &link).unwrap();
    let entry = Entry {
        aliases: vec![],
        name: "toy".into(),
        about: String::new(),
        licence: None,
        bytes: 0,
        location: Location::File(link.clone()),
    };
    delete(&entry, &cache.config).unwrap();
    assert!(precious.is_file() && fs::symlink_metadata(&link).is_err());
}
