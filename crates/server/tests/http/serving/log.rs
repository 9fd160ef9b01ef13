//! The access log: one line per request, also for errors and disconnects.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Setup, Site};

/// The log of all tests of this process.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lines() -> &'static Lines {
    static LINES: OnceLock<Lines> = OnceLock::new();
    LINES.get_or_init(|| {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        lines
    })
}

/// Waits for the log line of a request.
fn line(id: &str) -> Value {
    let start = Instant::now();
    loop {
        let text = String::from_utf8_lossy(&lines().0.lock().unwrap()).into_owned();
        let values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut of_request =
            values.filter(|line| line["target"] == "tern::access" && line["fields"]["id"] == id);
        if let Some(line) = of_request.next() {
            assert!(of_request.next().is_none(), "two lines of {id}");
            return line["fields"].clone();
        }
        assert!(start.elapsed() < Duration::from_secs(5), "no line of {id}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_request_has_one_line() {
    lines();
    let site = Site::new(Setup::default());
    let send = |id: &str, body: Value| {
        site.send("POST", "/v1/chat/completions", &[("x-request-id", id)], body.to_string().as_bytes())
    };
    let chat = |say: &str| json!({"messages": [{"role": "user", "content": format!("say:{say}")}]});
    let mut stream = chat("one two three");
    stream["stream"] = true.into();
    for (id, body) in [("log-whole", chat("one two three")), ("log-stream", stream)] {
        assert_eq!(send(id, body).status, 200);
        let line = line(id);
        assert_eq!((&line["method"], &line["status"]), (&json!("POST"), &json!(200)));
        assert_eq!((&line["finish"], &line["generated_tokens"]), (&json!("stop"), &json!(3)));
        assert!(line["prompt_tokens"].as_u64().unwrap() > 5);
        assert!(line["tokens_per_s"].as_f64().unwrap() > 0.0);
        assert!(line["ttft_ms"].is_u64() && line["total_ms"].is_u64());
    }
    assert!(line("log-stream")["cached_tokens"].as_u64().unwrap() > 0);

    send("log-bad", json!({"messages": 1}));
    let bad = line("log-bad");
    assert_eq!((&bad["status"], &bad["error"]), (&json!(400), &json!("messages: expected an array, got 1")));

    let mut body = chat("endless");
    let whole = body.to_string();
    body["stream"] = true.into();
    let body = body.to_string();
    let left = [("log-left-stream", body), ("log-left-whole", whole)].map(|(id, body)| {
        (id, site.open("POST", "/v1/chat/completions", &[("x-request-id", id)], body.as_bytes()))
    });
    let start = Instant::now();
    while site.handle.stats().running < 2 {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    thread::sleep(Duration::from_millis(100));
    for (id, stream) in left {
        drop(stream);
        let line = line(id);
        assert_eq!(line["finish"], "cancelled", "{id}");
        assert!(line["generated_tokens"].as_u64().unwrap() > 2, "{line}");
    }
}
