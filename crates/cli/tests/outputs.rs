//! Files that commands write: complete or missing, whatever else runs or is killed.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tern::formats::Checkpoint;

use crate::support::Home;

fn files(home: &Home) -> Vec<String> {
    let entries = home.0.path().read_dir().unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Starts a command without waiting for it.
fn start(home: &Home, args: &[&str]) -> std::process::Child {
    home.command(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn runs_with_one_output_do_not_disturb_each_other_or_folders_of_users() {
    let home = Home::new();
    home.run(&["synth", "tiny-qwen3:f16", "in.gguf"]).ok();
    fs::create_dir(home.path("out.gguf.part")).unwrap();
    fs::write(home.path("out.gguf.part/notes.txt"), "mine").unwrap();
    let formats = ["q8_0", "q4_0", "q6_k", "q8_0"];
    let running: Vec<_> = formats
        .iter()
        .map(|format| start(&home, &["quantize", "./in.gguf", "out.gguf", "--to", format, "--pure"]))
        .collect();
    for run in running {
        let ended = run.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    let tensors = Checkpoint::open(&home.path("out.gguf")).unwrap().tensors;
    assert!(["Q8_0", "Q4_0", "Q6_K"].contains(&tensors["blk.0.attn_q.weight"].quant.name));
    assert_eq!(fs::read_to_string(home.path("out.gguf.part/notes.txt")).unwrap(), "mine");
    assert_eq!(files(&home), ["in.gguf", "out.gguf", "out.gguf.part"]);
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next_one() {
    let home = Home::new();
    let mut killed = start(&home, &["synth", "bonsai-8b:q1_0", "out.gguf"]);
    let since = Instant::now();
    while files(&home).is_empty() {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing was written");
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap(); // SIGKILL
    killed.wait().unwrap();
    let left = files(&home);
    assert!(
        left.len() == 1 && left[0].starts_with(".out.gguf.tern-") && left[0].ends_with(".part"),
        "{left:?}"
    );
    home.run(&["synth", "tiny-qwen3:q8_0", "other.gguf"]).ok();
    assert_eq!(files(&home), [left[0].as_str(), "other.gguf"], "another output");
    home.run(&["synth", "tiny-qwen3:q8_0", "out.gguf"]).ok();
    assert_eq!(files(&home), ["other.gguf", "out.gguf"]);
}

#[test]
fn a_file_does_not_replace_a_folder_or_a_device() {
    let home = Home::new();
    fs::create_dir(home.path("out.gguf")).unwrap();
    let said = home.run(&["synth", "tiny-qwen3:q8_0", "out.gguf"]);
    assert_eq!(said.0.status.code(), Some(1));
    assert_eq!(said.stderr(), "tern: out.gguf is a folder: want the name of a file\n");
    let said = home.run(&["synth", "tiny-qwen3:q8_0", "/dev/null"]);
    assert_eq!(said.stderr(), "tern: /dev/null is not a regular file: want the name of a file\n");
    assert_eq!(files(&home), ["out.gguf"]);
}
