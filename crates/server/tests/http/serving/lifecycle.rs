//! The life of the server and of requests: loading, keys, full queues, disconnects, deadlines and drains.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::json;
use tern::engine::Limits;
use tern_server::Config;

use crate::support::{CAPACITY, LIMITS, Setup, Site, parse, wait_until_idle};

#[test]
fn requests_get_retry_after_until_the_model_is_loaded() {
    let (site, _loader) = Site::loading(Setup::default());
    for reply in [site.chat("a", json!({})), site.get("/v1/models"), site.get("/ready")] {
        assert_eq!((reply.status, reply.message().as_str()), (503, "the model is loading"));
        assert_eq!(reply.header("retry-after"), Some("2"));
    }
    assert_eq!(site.get("/health").status, 200);
    assert_eq!(site.get("/metrics").status, 200);
}

#[test]
fn every_route_except_health_requires_a_key() {
    let config = Config { api_keys: vec!["one".into(), "two".into()], ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode("me:two"));
    for path in ["/", "/v1/models", "/metrics", "/ready", "/nothing"] {
        for headers in [vec![], vec![("authorization", "Bearer three")]] {
            let reply = site.send("GET", path, &headers, b"");
            assert_eq!(
                (reply.status, &reply.json()["error"]["code"]),
                (401, &json!("invalid_api_key")),
                "{path}"
            );
            assert!(reply.header("www-authenticate").unwrap().starts_with("Basic realm=\"tern\""));
        }
        for key in ["Bearer one", "Bearer two", &basic] {
            assert_ne!(site.send("GET", path, &[("authorization", key)], b"").status, 401, "{path}");
        }
    }
    assert_eq!(site.chat("a", json!({})).status, 401);
    assert_eq!(site.get("/health").status, 200);
}

#[test]
fn a_full_queue_responds_with_retry_after() {
    let limits = Limits { max_seqs: 1, max_waiting: 1, ..LIMITS };
    let site = Site::new(Setup { limits, ..Setup::default() });
    let _runs = site.open_chat("endless");
    let _waits = site.open("POST", "/v1/completions", &[], json!({"prompt": "a"}).to_string().as_bytes());
    let start = Instant::now();
    while site.handle.stats().waiting == 0 {
        assert!(start.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(5));
    }
    let reply = site.chat("a", json!({}));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.message(), "the queue is full: 1 running and 1 waiting, at most 1 and 1");
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
}

#[test]
fn choices_wait_while_the_queue_is_full() {
    let limits = Limits { max_seqs: 1, max_waiting: 0, ..LIMITS };
    let site = Site::new(Setup { limits, ..Setup::default() });
    let reply = site.chat("one two", json!({"n": 4}));
    assert_eq!(reply.json()["choices"].as_array().unwrap().len(), 4);
    assert_eq!(reply.json()["choices"][3]["message"]["content"], "one two");
}

#[test]
fn a_disconnected_client_frees_its_pages() {
    let site = Site::new(Setup::default());
    let streams: Vec<_> = (0..4).map(|_| site.open_chat("endless")).collect();
    // and one that does not stream
    let body = json!({"prompt": "say:endless<answer>", "max_tokens": 400}).to_string();
    let whole = site.open("POST", "/v1/completions", &[], body.as_bytes());
    let start = Instant::now();
    while site.handle.stats().running < 5 {
        assert!(start.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(5));
    }
    assert!(site.handle.stats().pages_free < CAPACITY.pages);
    drop((streams, whole));
    let left = Instant::now();
    site.wait_until_idle();
    assert!(left.elapsed() < Duration::from_millis(500), "{:?}", left.elapsed());
    let metrics = site.get("/metrics").text;
    assert!(
        metrics.contains("vllm:request_success_total{model_name=\"parrot\",finished_reason=\"abort\"} 5"),
        "{metrics}"
    );
    assert!(metrics.contains("tern:http_responses_total{code=\"499\"} 1"), "{metrics}");
}

#[test]
fn a_request_has_a_deadline() {
    let config = Config { request_timeout: Some(Duration::from_millis(200)), ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let reply = site.chat("endless", json!({}));
    assert_eq!(
        (reply.status, reply.message().as_str()),
        (504, "the request exceeded the time limit of 0.2 s")
    );
    let reply = site.chat("endless", json!({"stream": true}));
    assert_eq!(reply.status, 200);
    let last = reply.text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.starts_with("data: {\"error\":") && last.contains("timeout_error"), "{last}");
    site.wait_until_idle();
}

#[test]
fn a_slow_body_times_out() {
    let config = Config { read_timeout: Duration::from_millis(200), ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let mut stream = site.open("POST", "/v1/completions", &[("content-length", "50")], b"");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    // two different lengths are refused by the HTTP layer
    assert_eq!(parse(&bytes).status, 400);
    let mut stream = std::net::TcpStream::connect(site.addr).unwrap();
    std::io::Write::write_all(
        &mut stream,
        b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
    )
    .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(parse(&bytes).status, 408);
    // an incomplete head times out
    let mut stream = std::net::TcpStream::connect(site.addr).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /health HTTP/1.1\r\n").unwrap();
    let start = Instant::now();
    let _ = stream.read_to_end(&mut Vec::new());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_drain_lets_running_requests_finish() {
    let site = Site::new(Setup::default());
    let mut stream = site.open_chat(&"word ".repeat(60));
    let addr = site.addr;
    let handle = site.handle.clone();
    let stopped = site.stop();
    thread::sleep(Duration::from_millis(50));
    assert!(std::net::TcpStream::connect(addr).is_err());
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    stopped.join().unwrap().unwrap();
    wait_until_idle(&handle);
}

#[test]
fn a_drain_ends_requests_that_do_not_finish() {
    let config = Config { drain_timeout: Duration::from_millis(200), ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let mut stream = site.open_chat("endless");
    let _idle = std::net::TcpStream::connect(site.addr).unwrap(); // sends nothing
    let handle = site.handle.clone();
    let start = Instant::now();
    let stopped = site.stop();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("the server is shutting down"), "{text}");
    stopped.join().unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    wait_until_idle(&handle);
}
