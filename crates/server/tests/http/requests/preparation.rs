//! Work that precedes the engine: limited by length, separate for small requests, cancelled with its client.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tern_server::Config;

use crate::support::{Setup, Site};

/// A body whose tokenization takes about a second: one long word, merged byte by byte.
fn slow() -> String {
    json!({"prompt": "the".repeat(200_000)}).to_string()
}

/// More requests than are prepared at once.
fn many() -> usize {
    4 * thread::available_parallelism().map_or(2, usize::from)
}

fn code(value: &Value) -> (&Value, &Value) {
    (&value["error"]["code"], &value["error"]["param"])
}

#[test]
fn a_text_that_cannot_fit_is_refused_by_its_bytes() {
    let site = Site::new(Setup::default());
    let longest = site.tokenizer.longest_token().unwrap();
    let (most, bytes) = (512 * longest, 512 * longest + 1);
    let text = "a".repeat(bytes);
    let message = format!(
        "{bytes} bytes exceed the context of 512 tokens, which holds at most {most} bytes (the longest token has \
         {longest})"
    );
    for (path, param, body) in [
        ("/v1/completions", "prompt", json!({"prompt": text})),
        ("/v1/embeddings", "input", json!({"input": ["a", text]})),
    ] {
        let reply = site.post(path, body);
        assert_eq!((reply.status, reply.message()), (400, format!("{param}: {message}")));
        assert_eq!(code(&reply.json()), (&json!("context_length_exceeded"), &json!(param)));
    }
    let reply = site.chat(&text, json!({}));
    assert_eq!((reply.status, code(&reply.json()).0), (400, &json!("context_length_exceeded")));
    // /tokenize has no limit
    assert_eq!(site.post("/tokenize", json!({"prompt": "a ".repeat(9000)})).status, 200);
}

#[test]
fn encoding_ends_at_the_context() {
    let site = Site::new(Setup::default());
    let text = "1 ".repeat(1000);
    for (path, param, body) in [
        ("/v1/completions", "prompt", json!({"prompt": text})),
        ("/v1/embeddings", "input", json!({"input": text})),
        ("/v1/chat/completions", "messages", json!({"messages": [{"role": "user", "content": text}]})),
    ] {
        let reply = site.post(path, body);
        let message = format!("{param}: the text exceeds the context of 512 tokens");
        assert_eq!((reply.status, reply.message()), (400, message));
        assert_eq!(code(&reply.json()), (&json!("context_length_exceeded"), &json!(param)));
    }
    let reply = site.post("/v1/completions", json!({"prompt": vec![1; 600]}));
    assert_eq!(reply.message(), "600 prompt tokens and 1 to generate do not fit the context of 512");
}

#[test]
fn a_small_request_does_not_wait_for_large_ones() {
    let site = Site::new(Setup::default());
    let body = slow();
    let large: Vec<_> = (0..many()).map(|_| site.open("POST", "/tokenize", &[], body.as_bytes())).collect();
    assert_eq!(site.post("/tokenize", json!({"prompt": "a"})).status, 200);
    let answered = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_ok()
    };
    let answered = large.iter().filter(answered).count();
    assert!(answered <= many() / 2, "{answered} of {} came first", many());
}

#[test]
fn a_disconnected_client_cancels_its_preparation() {
    let site = Site::new(Setup::default());
    let (body, start) = (slow(), Instant::now());
    assert_eq!(site.send("POST", "/tokenize", &[], body.as_bytes()).status, 200);
    let one = start.elapsed();
    let leaving: Vec<_> = (0..many()).map(|_| site.open("POST", "/tokenize", &[], body.as_bytes())).collect();
    thread::sleep(Duration::from_millis(200)); // some are being prepared and others wait
    drop(leaving);
    // large enough for the same workers
    let start = Instant::now();
    assert_eq!(site.post("/tokenize", json!({"prompt": "a ".repeat(40_000)})).status, 200);
    assert!(start.elapsed() < one + Duration::from_millis(500), "{:?} of {one:?}", start.elapsed());
}

#[test]
fn the_deadline_applies_to_preparation() {
    let limit = Duration::from_millis(150);
    let config = Config { request_timeout: Some(limit), ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let body = json!({"prompt": "the".repeat(600_000)}).to_string();
    thread::scope(|scope| {
        let replies: Vec<_> = (0..many())
            .map(|_| scope.spawn(|| site.send("POST", "/tokenize", &[], body.as_bytes())))
            .collect();
        for reply in replies {
            let reply = reply.join().unwrap();
            assert_eq!((reply.status, &reply.json()["error"]["code"]), (504, &json!("timeout")));
        }
    });
}
