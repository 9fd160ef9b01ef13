//! How the process of a server ends when its engine or its loader fails.
//!
//! A test starts the test binary again as a process that runs only [`process`]: it serves a model whose
//! device or loader fails, and ends as `tern serve` does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tern::engine::{Answer, Batch, Capacity, Engine, EngineError, Limits, Runner, ScriptedRunner};
use tern::formats::Checkpoint;
use tern::text::Tokenizer;
use tern::{Model, ModelParts, PartialSampling, Pooling, Sampling};

use tern_server::DefaultAdapters;

use super::*;
use crate::report;

/// The variable that selects the failure, and what the process prints before its address.
const SCENARIO: &str = "TERN_TEST_SCENARIO";
const ADDRESS: &str = "address: ";
/// Longer than any of the processes takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A runner whose device fails after a few steps.
struct Failing {
    script: ScriptedRunner,
    steps: usize,
    lost: bool,
}

impl Runner for Failing {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.script.submit(batch)
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        self.steps += 1;
        match (self.steps > 3, self.lost) {
            (true, true) => Err(EngineError::DeviceLost("a step on a GPU: misaligned address".into())),
            (true, false) => loop {
                thread::park(); // stuck forever
            },
            (false, _) => self.script.collect(),
        }
    }

    fn capacity(&self) -> Capacity {
        self.script.capacity()
    }
}

fn model(lost: bool) -> ServedModel {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tern/models/tern-stories-1bit.gguf");
    let tokenizer = Tokenizer::from_metadata(&Checkpoint::open(file.as_ref()).unwrap().metadata).unwrap();
    let limits = Limits { max_seqs: 2, max_context: 64, max_waiting: 2, step_millis: 0 };
    let capacity =
        Capacity { pages: 16, page_len: 8, max_tokens: 64, max_outputs: 2, window: None, state: None };
    let script = ScriptedRunner::new(tokenizer.vocab_size(), capacity);
    let runner = Failing { script, steps: 0, lost };
    ServedModel {
        names: vec!["failing".into()],
        created: 0,
        digest: String::new(),
        model: Model::from_parts(ModelParts {
            name: "failing".into(),
            handle: Engine::start(Box::new(runner), limits).unwrap(),
            tokenizer: Arc::new(tokenizer),
            template: None,
            pooling: Pooling::Mean,
            reranker: None,
            recommended: PartialSampling::default(),
            adapters: vec![],
            images: None,
        }),
        defaults: PartialSampling::USUAL.over(Sampling::default()),
        default_adapters: DefaultAdapters::default(),
    }
}

#[test]
#[ignore = "the process that the tests below start"]
fn process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let config = Config { drain_timeout: Duration::from_millis(200), ..Config::default() };
    let listener = bind("127.0.0.1", 0).unwrap();
    println!("{ADDRESS}{}", listener.local_addr().unwrap());
    let load = move || match scenario.as_str() {
        "lost" => Ok(model(true)),
        "stuck" => Ok(model(false)),
        "panic" => panic!("on purpose"),
        other => Err(CliError::message(format!("unknown scenario {other}"))),
    };
    std::process::exit(report(serve_on(Server::new(config), listener, true, load)).into());
}

fn start(scenario: &str) -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "serve::tests::process", "--ignored", "--nocapture"]).env(SCENARIO, scenario);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| Some(line.split_once(ADDRESS)?.1.to_owned()));
    (child, address.unwrap())
}

/// The lines of a streamed completion.
fn stream(address: &str) -> impl Iterator<Item = String> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let body = r#"{"prompt": "a", "max_tokens": 40, "stream": true}"#;
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    BufReader::new(stream).lines().map_while(Result::ok)
}

/// The exit status of the process and its stderr, with a limit on the time.
fn end(mut child: Child) -> (ExitStatus, String) {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("the process did not end");
        }
        thread::sleep(Duration::from_millis(10));
    };
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (status, stderr)
}

/// Waits until the model is loaded.
fn ready(address: &str) {
    let start = Instant::now();
    let get = || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /v1/models HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    while !get().starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < TIMEOUT);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_lost_device_ends_the_process_with_code_1_and_a_message() {
    let (child, address) = start("lost");
    ready(&address);
    let text: String = stream(&address).collect();
    assert!(text.contains("the device was lost: a step on a GPU: misaligned address"), "{text}");
    let (status, stderr) = end(child);
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.ends_with("tern: the device was lost: a step on a GPU: misaligned address\n"), "{stderr}");
}

#[test]
fn sigterm_ends_the_process_while_a_step_is_stuck() {
    let (child, address) = start("stuck");
    ready(&address);
    let mut lines = stream(&address);
    assert!(lines.any(|line| line.contains("\"text\"")), "text before it was stuck");
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let (status, stderr) = end(child);
    assert_eq!(status.code(), Some(0), "{stderr}");
}

#[test]
fn a_loader_that_panics_ends_the_process_with_code_1_and_a_message() {
    let (status, stderr) = end(start("panic").0);
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("on purpose"), "{stderr}");
    assert!(
        stderr.ends_with("tern: loading the model panicked; see the panic message in the log\n"),
        "{stderr}"
    );
}
