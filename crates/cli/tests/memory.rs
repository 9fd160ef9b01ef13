//! Commands in little memory: they work or end with an error, and no allocation aborts the process.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::process::{Command, Stdio};

use crate::support::{Home, Ran};

/// Runs the command with this much address space.
fn within(home: &Home, kib: u64, args: &[&str]) -> Ran {
    let own = home.command(args);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v \"$0\"; ulimit -c 0; exec \"$@\"", &kib.to_string()]);
    command.arg(own.get_program()).args(own.get_args()).current_dir(home.0.path());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ran(command.stdin(Stdio::null()).output().unwrap())
}

/// From plenty to less than the program itself needs.
const LIMITS: [u64; 20] = [
    4_000_000, 1_000_000, 500_000, 450_000, 400_000, 360_000, 320_000, 300_000, 280_000, 265_000, 250_000,
    235_000, 220_000, 205_000, 190_000, 175_000, 160_000, 145_000, 130_000, 110_000,
];

#[test]
fn memory_that_is_refused_is_an_error_with_numbers() {
    let home = Home::new();
    home.run(&["synth", "smollm2-135m:q4_0", "model.gguf"]).ok();
    let mut wrong = vec![];
    for kib in LIMITS {
        let said = within(&home, kib, &["run", "-m", "./model.gguf", "-n", "2", "-t", "2", "--raw", "Once"]);
        let (code, text) = (said.0.status.code(), String::from_utf8_lossy(&said.0.stderr).into_owned());
        let last = text.lines().last().unwrap_or_default();
        println!("{kib} KiB: {code:?} {last}");
        let explained = last.starts_with("tern: ") && last.contains(|c: char| c.is_ascii_digit());
        if code != Some(0) && !(code == Some(1) && explained) {
            wrong.push(format!("{kib} KiB: {:?}: {text}", said.0.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let plenty = within(&home, LIMITS[0], &["run", "-m", "./model.gguf", "-n", "2", "--raw", "Once"]);
    plenty.ok();
    // the mapped file alone is larger
    let said = within(&home, 70_000, &["inspect", "./model.gguf"]);
    assert_eq!(said.0.status.code(), Some(1), "{}", said.stderr());
}

#[test]
fn packed_weights_make_room_for_the_scratch() {
    let home = Home::new();
    home.run(&["synth", "smollm2-135m:q4_0", "model.gguf"]).ok();
    // with packed copies of all weights there would be too little for the rest
    let args = ["run", "-m", "./model.gguf", "-n", "2", "-t", "2", "-c", "512", "--raw", "Once"];
    within(&home, 330_000, &args).ok();
}
