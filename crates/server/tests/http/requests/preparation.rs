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
fn a_text_that_does_not_fit_is_refused_with_its_tokens_and_the_limit() {
    let site = Site::new(Setup::default());
    // a few tokens too many, and far too many
    for text in ["1 ".repeat(600), "a".repeat(50_000)] {
        let tokens = site.tokenizer.encode(&text, true, true).len();
        for (path, param, body) in [
            ("/v1/completions", "prompt", json!({"prompt": text})),
            ("/v1/completions", "prompt", json!({"prompt": vec![1; tokens]})),
            ("/v1/embeddings", "input", json!({"input": ["a", text]})),
        ] {
            let reply = site.post(path, body);
            let message = format!(
                "{param}: this model's maximum context length is 512 tokens, but the text has {tokens}"
            );
            assert_eq!((reply.status, reply.message()), (400, message));
            assert_eq!(code(&reply.json()), (&json!("context_length_exceeded"), &json!(param)));
        }
        let messages = json!({"messages": [{"role": "user", "content": text}]});
        // /tokenize has no limit
        let count = site.post("/tokenize", messages.clone()).json()["count"].clone();
        let message = |param: &str| {
            format!("{param}: this model's maximum context length is 512 tokens, but the text has {count}")
        };
        assert_eq!(site.post("/v1/chat/completions", messages.clone()).message(), message("messages"));
        assert_eq!(site.post("/v1/responses", json!({"input": text})).message(), message("input"));
        let mut anthropic = messages;
        anthropic["max_tokens"] = 5.into();
        let reply = site.post("/v1/messages", anthropic).json();
        let words = format!("prompt is too long: {count} tokens > 512 maximum");
        let error = json!({"type": "invalid_request_error", "message": words});
        assert_eq!(reply, json!({"type": "error", "error": error}));
    }
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
