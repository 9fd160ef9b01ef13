//! Runs the command with a temporary home folder and no network, so that nothing outside is read or written.
#![allow(dead_code, unused_imports, reason = "every test file uses a different part")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tern::formats::{Checkpoint, gguf::Writer};

pub(crate) use server::Server;

/// The greedy continuation of [`PROMPT`] by the embedded model.
pub(crate) const CONTINUATION: &str = ", there was a little girl named Lily. She loved to play outside in the park. \
                            One day, she saw a big, scary dog.";
pub(crate) const PROMPT: &str = "Once upon a time";

/// A temporary home folder.
pub(crate) struct Home(pub(crate) TempDir);

impl Home {
    pub(crate) fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tern"));
        command.args(args).current_dir(self.0.path());
        let folders =
            ["HOME", "USERPROFILE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "HF_HOME"];
        for name in folders {
            command.env(name, self.0.path());
        }
        for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "TERN_MODEL", "TERN_CONFIG"]
        {
            command.env_remove(name);
        }
        command.env("HF_HUB_OFFLINE", "1");
        command
    }

    pub(crate) fn run_with(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // a command that does not read stdin may have exited already
        let _ = child.stdin.take().unwrap().write_all(stdin);
        Ran(child.wait_with_output().unwrap())
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, b"")
    }
}

/// Runs the command in a new home folder.
pub(crate) fn tern(args: &[&str]) -> Ran {
    Home::new().run(args)
}

/// The output of a run.
pub(crate) struct Ran(pub(crate) Output);

impl Ran {
    pub(crate) fn stdout(&self) -> &str {
        std::str::from_utf8(&self.0.stdout).unwrap()
    }

    pub(crate) fn stderr(&self) -> &str {
        std::str::from_utf8(&self.0.stderr).unwrap()
    }

    /// The stdout of a successful run.
    pub(crate) fn ok(&self) -> &str {
        assert_eq!(self.0.status.code(), Some(0), "{}", self.stderr());
        self.stdout()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.ok()).unwrap_or_else(|e| panic!("{e}: {}", self.stdout()))
    }

    /// The message of a failed run: nothing on stdout, one line on stderr.
    pub(crate) fn refusal(&self) -> &str {
        assert_eq!(self.0.status.code(), Some(1), "{}{}", self.stdout(), self.stderr());
        assert_eq!(self.stdout(), "");
        let line = self.stderr().strip_suffix('\n').unwrap();
        assert!(!line.contains('\n'), "more than one line: {line}");
        line.strip_prefix("tern: ").unwrap()
    }

    /// The message about wrong usage.
    pub(crate) fn usage(&self) -> &str {
        assert_eq!(self.0.status.code(), Some(2), "{}{}", self.stdout(), self.stderr());
        assert_eq!(self.stdout(), "");
        self.stderr()
    }
}

pub(crate) fn stories_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models/tern-stories-1bit.gguf")
}

/// Writes the embedded model into the home folder, with additional metadata keys.
pub(crate) fn stories_with(home: &Home, name: &str, keys: &[(&str, tern::formats::Value)]) {
    let stories = Checkpoint::open(&stories_file()).unwrap();
    let mut metadata = stories.metadata;
    for (key, value) in keys {
        metadata.insert(*key, value.clone());
    }
    let mut writer = Writer::new(metadata);
    let tensors: Vec<_> = stories.tensors.values().collect();
    tensors.iter().for_each(|t| writer.declare(&t.name, t.quant, &t.dims).unwrap());
    let mut file = std::fs::File::create(home.path(name)).unwrap();
    writer.write_to(&mut file, |index, out| out.write_all(&tensors[index].data())).unwrap();
}
