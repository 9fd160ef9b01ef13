//! Hostile model files, files that are truncated while in use, and machines without a home folder.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use tern::formats::{Metadata, Value, gguf::Writer};

use crate::support::{CONTINUATION, Home, PROMPT, Ran, stories_with};

fn write(home: &Home, name: &str, keys: &[(&str, Value)], tensors: &[&str]) {
    let mut metadata = Metadata::default();
    keys.iter().for_each(|(key, value)| drop(metadata.insert(*key, value.clone())));
    let mut writer = Writer::new(metadata);
    tensors.iter().for_each(|name| writer.declare(name, &tern::quant::F32, &[1]).unwrap());
    let mut file = std::fs::File::create(home.path(name)).unwrap();
    writer.write_to(&mut file, |_, out| out.write_all(&[0; 4])).unwrap();
}

fn is_harmless(ran: &Ran) {
    let all = [ran.stdout(), ran.stderr()].concat();
    assert!(!all.contains(|c: char| c.is_control() && c != '\n'), "control characters: {all:?}");
    let longest = all.lines().map(str::len).max().unwrap();
    assert!(longest < 2_500, "a line of {longest} bytes");
}

#[test]
fn names_from_files_are_escaped_and_shortened() {
    let home = Home::new();
    let text = |text: &str| Value::String(text.into());
    let (bell, long) = ("\x1b]0;owned\x07\x1b[2J\r\u{9b}31m\u{202e}", "A".repeat(60_000));
    let arch = format!("{bell}{long}");
    write(&home, "arch.gguf", &[("general.architecture", text(&arch))], &[]);
    write(&home, "key.gguf", &[("general.architecture", text("llama")), (&arch, text(bell))], &[]);
    let tensor = format!("{bell}{}", "t".repeat(40));
    write(&home, "tensor.gguf", &[("general.architecture", text("llama"))], &["token_embd.weight", &tensor]);
    let list = Value::Strings(vec![arch.clone(), arch.clone()]);
    write(&home, "list.gguf", &[("general.architecture", list)], &[]);
    for file in ["./arch.gguf", "./key.gguf", "./tensor.gguf", "./list.gguf"] {
        for args in [&["inspect", file][..], &["run", "-q", "-m", file, PROMPT]] {
            let ran = home.run(args);
            is_harmless(&ran);
            assert!(file != "./arch.gguf" || ran.stdout().len() + ran.stderr().len() < 2_000, "{args:?}");
        }
    }
    let said = home.run(&["run", "-q", "-m", "./arch.gguf", PROMPT]).refusal().to_string();
    assert!(said.contains("`\\u{1b}]0;owned\\u{7}\\u{1b}[2J\\r"), "{said}");
    assert!(said.contains(&format!("... ({} bytes)` is not supported; Tern runs ", arch.len())), "{said}");

    std::fs::create_dir(home.path("two")).unwrap();
    for name in ["one.gguf", "two\x1b[2J.gguf"] {
        write(&home, &format!("two/{name}"), &[], &[]);
    }
    is_harmless(&home.run(&["inspect", "./two"]));
    // a template may raise any text
    let template = text(&format!("{{{{ raise_exception('{bell}') }}}}"));
    stories_with(&home, "raises.gguf", &[("tokenizer.chat_template", template)]);
    is_harmless(&home.run(&["run", "-q", "-m", "./raises.gguf", PROMPT]));
}

#[test]
fn a_path_and_the_embedded_model_need_no_home() {
    let home = Home::new();
    stories_with(&home, "copy.gguf", &[]);
    let run = |args: &[&str]| {
        let mut command = home.command(args);
        for name in ["HOME", "USERPROFILE", "XDG_CACHE_HOME", "HF_HOME"] {
            command.env_remove(name);
        }
        Ran(command.stdin(Stdio::null()).output().unwrap())
    };
    for model in ["./copy.gguf", "stories"] {
        assert_eq!(run(&["run", "-q", "-n", "3", "--temp", "0", "-m", model, PROMPT]).ok(), ", there was\n");
    }
    run(&["inspect", "./copy.gguf"]).ok();
    let want = "no cache folder for models: set HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME";
    assert_eq!(run(&["run", "-q", "-m", "smollm2", PROMPT]).refusal(), want);
}

/// A server whose model file can be truncated.
struct Server {
    child: Child,
    address: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(home: &Home, flags: &[&str]) -> Server {
        let args =
            ["serve", "./copy.gguf", "--port", "0", "--device", "cpu", "-c", "64", "--max-num-seqs", "1"];
        let mut command = home.command(&[&args[..], flags].concat());
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut address, mut line) = (String::new(), String::new());
        while !line.contains(" is ready after ") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server ended");
            if let Some(rest) = line.strip_prefix("tern: listening on http://") {
                address = rest.split(' ').next().unwrap().to_string();
            }
        }
        let server = Server { child, address, stderr };
        // the line is written shortly before the server accepts requests
        while !server.ask("GET /ready", "").starts_with("HTTP/1.1 200") {
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// The response to one request; empty if the server dies.
    fn ask(&self, line: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (host, length) = (&self.address, body.len());
        let head = format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer); // a reset is a valid outcome
        answer
    }

    fn complete(&self) -> String {
        let body = format!(r#"{{"prompt": "{PROMPT}", "max_tokens": 3, "temperature": 0}}"#);
        self.ask("POST /v1/completions", &body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn truncate(home: &Home) {
    std::fs::File::options().write(true).open(home.path("copy.gguf")).unwrap().set_len(0).unwrap();
}

#[test]
fn a_file_truncated_while_mapped_ends_with_a_message() {
    let home = Home::new();
    stories_with(&home, "copy.gguf", &[]);
    let mut server = Server::start(&home, &[]);
    truncate(&home);
    server.complete();
    assert_eq!(server.child.wait().unwrap().code(), Some(1), "an exit code, not a signal");
    let mut said = String::new();
    server.stderr.read_to_string(&mut said).unwrap();
    assert!(
        said.contains("tern: a mapped file could not be read (SIGBUS): the model file was truncated"),
        "{said}"
    );
    assert!(said.contains("--no-mmap"), "{said}");
}

#[test]
fn a_copy_in_memory_survives_truncation_of_its_file() {
    let home = Home::new();
    stories_with(&home, "copy.gguf", &[]);
    let server = Server::start(&home, &["--no-mmap"]);
    truncate(&home);
    let answer = server.complete();
    assert!(answer.contains(r#""text":", there was""#), "{answer}");
}

#[test]
fn files_may_be_copied_and_locked() {
    let home = Home::new();
    stories_with(&home, "copy.gguf", &[]);
    let run = |flags: &[&str]| {
        home.run(&[&["run", "-q", "-n", "8", "--temp", "0", "-m", "./copy.gguf", PROMPT], flags].concat())
    };
    assert!(CONTINUATION.starts_with(run(&["--no-mmap"]).ok().trim_end()));
    for flags in [&["--mlock"][..], &["--mlock", "--no-mmap"]] {
        let ran = run(flags);
        match ran.0.status.code() {
            Some(0) => assert!(CONTINUATION.starts_with(ran.stdout().trim_end())),
            _ => assert!(ran.refusal().contains("cannot lock "), "{}", ran.stderr()),
        }
    }
}
