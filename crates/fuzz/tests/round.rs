//! A short run of every target: the corpus, and some seconds of mutations.

use std::process::Command;

/// Seconds per target.
const SECONDS: &str = "3";

fn round(target: &str) {
    let out = Command::new(env!("CARGO_BIN_EXE_tern-fuzz")).args([target, SECONDS]).output();
    let out = out.expect("the fuzzer starts");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    println!("{said}");
}

#[test]
fn gguf() {
    round("gguf");
}

#[test]
fn folder() {
    round("folder");
}

#[test]
fn tokenizer() {
    round("tokenizer");
}

#[test]
fn template() {
    round("template");
}

#[test]
fn schema() {
    round("schema");
}

#[test]
fn answer() {
    round("answer");
}

#[test]
fn http() {
    round("http");
}
