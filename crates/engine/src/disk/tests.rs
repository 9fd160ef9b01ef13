//! A folder as others may leave it: damaged, foreign, full, in use, and after `kill -9`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tern_graph::CachePart;

use super::*;

const PAYLOAD: usize = 1000;

/// A cache and the lines that it logs.
struct Opened {
    cache: DiskCache,
    lines: Arc<Mutex<Vec<String>>>,
}

fn try_open(folder: &Path, most_bytes: u64) -> Result<Opened, DiskError> {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&lines);
    let log = Arc::new(move |line: &str| log.lock().unwrap().push(line.into()));
    Ok(Opened { cache: DiskCache::open(folder, most_bytes, log)?, lines })
}

fn open(folder: &Path) -> Opened {
    try_open(folder, 1 << 30).unwrap()
}

fn model() -> Key {
    Key::of(&[b"model"])
}

/// The first page of a text.
fn item(token: u32) -> Item {
    Item::new(CachePart::Page, 0, model(), vec![token; 8])
}

fn payload(token: u32) -> Vec<u8> {
    (0..PAYLOAD as u32).map(|i| (i * 7 + token) as u8).collect()
}

impl Opened {
    fn write(&self, token: u32) {
        let counters = Arc::<Counters>::default();
        let (item, payload) = (item(token), payload(token));
        if self.cache.queue().wants(&item, payload.len()) {
            let counters = Arc::clone(&counters);
            self.cache.queue().write(WriteJob { model: model(), item, payload, counters });
        }
        self.cache.queue().wait_for_writes(&counters, Instant::now() + Duration::from_secs(20));
    }

    fn read_as(&self, model: Key, item: Item) -> Option<Vec<u8>> {
        let (sender, files) = channel();
        let reply = Box::new(move |files: Vec<Read>| sender.send(files).unwrap());
        self.cache.queue().read(ReadJob { model, items: vec![(item, PAYLOAD)], reply });
        files.recv_timeout(Duration::from_secs(20)).unwrap().remove(0).payload
    }

    fn read(&self, token: u32) -> Option<Vec<u8>> {
        self.read_as(model(), item(token))
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_come_back_after_a_restart_and_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("not/made/yet");
    let opened = open(&folder);
    (0..5).for_each(|token| opened.write(token));
    assert_eq!((opened.read(3), opened.read(9)), (Some(payload(3)), None));
    drop(opened);
    let opened = open(&folder);
    let bytes = file::length(&item(0), PAYLOAD);
    assert_eq!(opened.cache.usage(), DiskUse { files: 5, bytes: 5 * bytes });
    (0..5).for_each(|token| assert_eq!(opened.read(token), Some(payload(token))));
    assert_eq!(opened.lines(), Vec::<String>::new());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(item(0).id.name()))), (0o700, 0o600));
    }
}

#[test]
fn a_damaged_file_is_skipped_with_one_line_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |token: u32| folder.path().join(item(token).id.name());
    let opened = open(folder.path());
    (0..5).for_each(|token| opened.write(token));
    let mut bytes = fs::read(path(1)).unwrap();
    bytes[500] ^= 1;
    fs::write(path(1), &bytes).unwrap();
    fs::write(path(2), &bytes[..700]).unwrap();
    fs::write(path(3), fs::read(path(0)).unwrap()).unwrap(); // another page under this name
    fs::write(path(4), b"").unwrap();
    let read: Vec<bool> = (0..5).map(|token| opened.read(token).is_some()).collect();
    assert_eq!(read, [true, false, false, false, false]);
    let lines = opened.lines();
    let whys = ["the checksum is wrong", "the file has 700", "a token differs", "the file has 0"];
    assert_eq!(lines.len(), whys.len(), "{lines:?}");
    for (line, why) in lines.iter().zip(whys) {
        assert!(line.contains("is skipped: ") && line.ends_with(why), "{line}");
    }
    assert_eq!(names(folder.path()), [item(0).id.name(), "lock".into()]);
    opened.write(1); // and written again
    assert_eq!(opened.read(1), Some(payload(1)));
    // the file of another model, at the place where ours would be
    assert_eq!(opened.read_as(Key::of(&[b"other"]), item(1)), None);
    assert!(opened.lines().last().unwrap().ends_with("the model differs"));
}

#[cfg(unix)]
#[test]
fn links_fifos_and_folders_are_neither_followed_nor_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let path = |token: u32| folder.path().join(item(token).id.name());
    let opened = open(folder.path());
    (0..4).for_each(|token| opened.write(token));
    let secret = outside.path().join("secret");
    fs::rename(path(0), &secret).unwrap();
    std::os::unix::fs::symlink(&secret, path(0)).unwrap();
    fs::remove_file(path(1)).unwrap();
    fs::create_dir(path(1)).unwrap();
    fs::remove_file(path(2)).unwrap();
    assert!(Command::new("mkfifo").arg(path(2)).status().unwrap().success());
    for token in 0..3 {
        assert_eq!(opened.read(token), None, "{token}");
    }
    assert_eq!(opened.read(3), Some(payload(3)));
    assert!(secret.exists(), "only the link is removed");
    drop(opened);
    // before a start as well: what is no file of the cache stays as it is
    std::os::unix::fs::symlink(&secret, path(0)).unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let opened = open(folder.path());
    assert_eq!(opened.cache.usage().files, 1);
    let lines = opened.lines();
    assert!(lines.len() == 1 && lines[0].contains("names are not of this cache"), "{lines:?}");
    assert!(names(folder.path()).contains(&"notes.txt".into()) && path(0).is_symlink());
    // a link in place of the temporary name is an error, and what it leads to stays
    let temporary = folder.path().join(format!("{}.tmp", item(7).id.name()));
    std::os::unix::fs::symlink(&secret, &temporary).unwrap();
    let before = fs::read(&secret).unwrap();
    opened.write(7);
    assert_eq!((fs::read(&secret).unwrap(), opened.read(7)), (before, None));
}

#[test]
fn the_least_recently_used_files_make_room_also_when_the_limit_is_lower_at_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = file::length(&item(0), PAYLOAD);
    let opened = try_open(folder.path(), 3 * bytes + 10).unwrap();
    for token in 0..3 {
        opened.write(token);
        std::thread::sleep(Duration::from_millis(20)); // file systems with coarse times
    }
    assert!(opened.cache.queue().index().touch(&item(0).id));
    opened.write(3);
    let left = |opened: &Opened| (0..4).map(|token| opened.read(token).is_some()).collect::<Vec<_>>();
    assert_eq!(left(&opened), [true, false, true, true]);
    assert_eq!(opened.cache.usage(), DiskUse { files: 3, bytes: 3 * bytes });
    drop(opened);
    let opened = try_open(folder.path(), 2 * bytes).unwrap();
    assert_eq!(names(folder.path()).len(), 2 + 1, "and the lock");
    drop(opened);
    let opened = try_open(folder.path(), 10).unwrap();
    opened.write(5); // larger than all of the folder
    assert_eq!((opened.cache.usage(), names(folder.path())), (DiskUse::default(), vec!["lock".into()]));
}

#[test]
fn a_folder_in_use_and_one_that_others_may_write_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    let refused = |folder: &Path| try_open(folder, 1 << 20).map(|_| ()).unwrap_err();
    assert!(matches!(refused(folder.path()), DiskError::InUse(_)));
    opened.write(1);
    assert_eq!(opened.read(1), Some(payload(1)));
    drop(opened);
    open(folder.path());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(refused(&file), DiskError::Io(..)));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let why = refused(folder.path()).to_string();
        assert!(why.contains("other users may write"), "{why}");
    }
}

#[test]
fn a_disk_that_refuses_a_write_ends_writing_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    opened.write(1);
    // what a full disk is to the cache: the file cannot be made
    fs::create_dir(folder.path().join(format!("{}.tmp", item(2).id.name()))).unwrap();
    (2..6).for_each(|token| opened.write(token));
    let lines = opened.lines();
    assert!(lines.len() == 1 && lines[0].contains("nothing more is written"), "{lines:?}");
    assert_eq!(opened.cache.usage().files, 1);
    assert_eq!(opened.read(1), Some(payload(1)), "it is still read");
}

/// Not a test: the child of the next one.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os("TERN_DISK_CHILD") else { return };
    let opened = open(Path::new(&folder));
    (0..1_000_000).for_each(|token| opened.write(token)); // more than it lives
}

#[test]
fn kill_9_loses_nothing_but_the_file_in_hand() {
    for round in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk::tests::child_that_writes_until_it_is_killed", "--nocapture"])
            .env("TERN_DISK_CHILD", folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while fs::read_dir(folder.path()).unwrap().count() < 20 + 37 * round {
            assert!(start.elapsed() < Duration::from_secs(60), "the child writes nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        let whole = names(folder.path()).iter().filter(|name| name.ends_with(".page")).count();
        let opened = open(folder.path());
        assert_eq!(opened.cache.usage().files, whole);
        assert!(whole >= 18, "{whole}");
        // they were written in this order, so that all of them are whole and none before the last is missing
        (0..whole as u32).for_each(|token| assert_eq!(opened.read(token), Some(payload(token)), "{token}"));
        assert_eq!(opened.lines(), Vec::<String>::new());
        assert!(!names(folder.path()).iter().any(|name| name.ends_with(".tmp")));
    }
}
