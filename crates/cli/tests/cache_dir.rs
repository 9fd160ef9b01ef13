//! `--cache-dir`: a server finds the prefixes of the one before it, however that one ended.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Home, Server};

impl Server {
    fn request(&self, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let length = body.len();
        write!(stream, "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_string()
    }

    /// The text after a prompt and how many of its tokens were cached.
    fn completes(&self, prompt: &str) -> (String, u64) {
        let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0});
        let reply: Value =
            serde_json::from_str(&self.request("POST /v1/completions", &body.to_string())).unwrap();
        let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (reply["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{reply}")).into(), cached.unwrap())
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.request("GET /metrics", "");
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

fn prompt(name: &str) -> String {
    format!("Once upon a time there was a little girl named {name}. She had a red ball and a dog. ").repeat(8)
}

/// A server that has loaded its model.
fn start(home: &Home, folder: &str, more: &[&str]) -> Server {
    let flags = ["-m", "stories", "-c", "256", "--cache-dir", folder];
    let server = Server::start(home, &[&flags[..], more].concat());
    let start_of_wait = Instant::now();
    while server.request("GET /ready", "").contains("error") {
        assert!(start_of_wait.elapsed() < Duration::from_secs(60), "the model is not loaded");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
fn prefixes_survive_a_restart_and_kill_9() {
    let home = Home::new();
    let folder = home.path("prefixes");
    let folder = folder.to_str().unwrap();
    let server = start(&home, folder, &[]);
    let (text, cached) = server.completes(&prompt("Lily"));
    assert_eq!((cached, server.metric("tern:disk_cache_hit_tokens_total")), (0, 0.0));
    server.terminate();

    let server = start(&home, folder, &[]);
    let (again, cached) = server.completes(&prompt("Lily"));
    assert!(again == text && cached >= 64, "{cached} cached, {again:?}, want {text:?}");
    assert_eq!(server.metric("tern:disk_cache_hit_tokens_total"), cached as f64);
    assert!(
        server.metric("tern:disk_cache_bytes") > 0.0 && server.metric("tern:disk_cache_reads_total") > 1.0
    );
    drop(server); // SIGKILL

    // few pages, so that prefixes leave memory while it runs; killed in the middle of it
    let server = start(&home, folder, &["--kv-pages", "16", "--max-num-seqs", "1"]);
    let names = ["Anna", "Ben", "Clara", "Daniel", "Emma", "Felix"];
    let texts = names.map(|name| server.completes(&prompt(name)).0);
    let start_of_wait = Instant::now();
    while server.metric("tern:disk_cache_writes_total") < 10.0 {
        assert!(start_of_wait.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);

    let server = start(&home, folder, &[]);
    assert_eq!(server.completes(&prompt("Lily")), (text, cached), "what was there is still there");
    let found = names.map(|name| server.completes(&prompt(name)));
    for ((want, name), (text, _)) in texts.iter().zip(names).zip(&found) {
        assert_eq!(text, want, "{name}");
    }
    assert!(found[0].1 >= 64, "the first one left memory: {found:?}");
    assert!(std::fs::read_dir(folder).unwrap().count() > 12);
}

#[test]
fn a_second_server_runs_without_the_folder_and_says_so() {
    let home = Home::new();
    let folder = home.path("prefixes");
    let folder = folder.to_str().unwrap();
    let first = start(&home, folder, &[]);
    let run = ["run", "-m", "stories", "--device", "cpu", "-n", "3", "--cache-dir", folder, "Once"];
    let (beside, warning) = (home.run(&run), "another process uses this folder as its cache");
    assert!(beside.stderr().contains(warning), "{}", beside.stderr());
    drop(first);
    let after = home.run(&run);
    assert!(!after.stderr().contains(warning), "{}", after.stderr());
    assert_eq!(beside.ok(), after.ok());
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_at_the_start() {
    let home = Home::new();
    std::fs::write(home.path("file"), "mine").unwrap();
    let run = ["run", "-m", "stories", "--device", "cpu", "-q", "--cache-dir"];
    let ran = home.run(&[&run[..], &["file", "Once"]].concat());
    assert!(ran.refusal().starts_with("prefix cache: file: "), "{}", ran.stderr());
    let ran = home.run(&[&run[..], &["x", "--cache-dir-size", "0", "Once"]].concat());
    assert!(ran.usage().contains("--cache-dir-size"), "{}", ran.stderr());
    assert!(!home.path("x").exists());
}
