//! An engine that loses its device, panics or is stuck, and a model that cannot be loaded: the responses, and
//! how the server ends.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tern::engine::{EngineError, Limits};
use tern_server::{Config, ServeError};

use crate::support::{LIMITS, Reply, Setup, Site, parse, wait_until};

const LOST: &str = "the device was lost: a step on a parrot: misaligned address";

/// A server that outlives the test.
fn long_grace() -> Config {
    Config { failure_grace: Duration::from_secs(60), ..Config::default() }
}

fn site(config: Config) -> Site {
    Site::new(Setup { config, ..Setup::default() })
}

/// Sends a completion whose prompt triggers a fault.
fn ask(site: &Site, say: &str, stream: bool) -> std::net::TcpStream {
    let body =
        json!({"prompt": format!("say:{say}<answer>"), "max_tokens": 400, "stream": stream}).to_string();
    site.open("POST", "/v1/completions", &[], body.as_bytes())
}

fn reply(mut stream: std::net::TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    parse(&bytes)
}

/// Status, code and message of every route that needs the model.
fn answers(site: &Site) -> Vec<(u16, String, String)> {
    let replies = [
        site.chat("a", json!({})),
        site.chat("a", json!({"stream": true})),
        site.post("/v1/completions", json!({"prompt": "a"})),
        site.post("/v1/embeddings", json!({"input": "a"})),
        site.get("/ready"),
        site.get("/health"),
    ];
    let code = |reply: &Reply| reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
    replies.iter().map(|reply| (reply.status, code(reply), reply.message())).collect()
}

fn last_event(text: &str) -> &str {
    text.trim_end().rsplit("\n\n").next().unwrap()
}

#[test]
fn a_lost_device_fails_all_requests_and_ends_the_server() {
    let limits = Limits { max_context: 2000, ..LIMITS };
    let mut site = Site::new(Setup { limits, ..Setup::default() });
    let mut streaming = site.open_chat("endless");
    let lose = ask(&site, "stick and lose", true);
    wait_until(|| site.handle.stats().running == 2);
    let whole = ask(&site, "endless", false);
    let body = json!({"input": "a text that waits"}).to_string();
    let embedding = site.open("POST", "/v1/embeddings", &[], body.as_bytes());
    wait_until(|| site.handle.stats().waiting == 2);
    let _idle = std::net::TcpStream::connect(site.addr).unwrap();
    assert_eq!(site.get("/health").status, 200);
    site.faults.released.store(true, Ordering::Relaxed);

    let mut text = String::new();
    streaming.read_to_string(&mut text).unwrap();
    for text in [text, reply(lose).text] {
        assert!(text.contains(LOST) && text.contains("\"code\":\"device_lost\""), "{text}");
        assert!(!text.contains("[DONE]"), "{text}");
    }
    for reply in [whole, embedding].map(reply) {
        assert_eq!((reply.status, reply.message().as_str()), (500, LOST));
        assert_eq!(reply.json()["error"]["type"], "server_error");
    }
    assert_eq!(site.end(), Err(ServeError::Engine(EngineError::DeviceLost(LOST[21..].into()))));
}

#[test]
fn after_a_lost_device_everything_is_503_with_the_reason() {
    let site = site(long_grace());
    site.faults.released.store(true, Ordering::Relaxed);
    assert_eq!(reply(ask(&site, "stick and lose", false)).status, 500);
    for answer in answers(&site) {
        assert_eq!(answer, (503, "device_lost".into(), LOST.into()));
    }
    assert!(site.get("/metrics").text.contains("tern:engine_up{model_name=\"parrot\"} 0"));
}

#[test]
fn a_failed_step_is_reported_and_an_engine_that_panics_ends_the_server() {
    let mut site = site(long_grace());
    let reply = site.chat("nothing", json!({}));
    let message = "the model produced values that are not finite (NaN or infinity) at position ";
    assert!(reply.status == 500 && reply.message().starts_with(message), "{}", reply.text);
    assert_eq!(reply.json()["error"]["code"], "engine_error");
    assert_eq!(site.get("/health").status, 200);
    let message = "the engine stopped after a panic: on purpose";
    let reply = site.chat("panic", json!({"stream": true}));
    assert!(last_event(&reply.text).contains(message), "{}", reply.text);
    for answer in answers(&site) {
        assert_eq!(answer, (503, "engine_stopped".into(), message.into()));
    }
    drop(site);

    site = self::site(Config { failure_grace: Duration::ZERO, ..Config::default() });
    site.chat("panic", json!({"stream": true}));
    assert_eq!(site.end().unwrap_err().to_string(), message);
}

#[test]
fn a_client_that_does_not_read_does_not_delay_the_end() {
    let mut site = site(Config { failure_grace: Duration::ZERO, ..Config::default() });
    let _unread = site.open_chat("endless");
    let _idle = std::net::TcpStream::connect(site.addr).unwrap();
    site.faults.released.store(true, Ordering::Relaxed);
    let _lose = ask(&site, "stick and lose", true);
    assert!(site.end().is_err());
}

#[test]
fn a_stuck_step_is_reported_until_it_ends() {
    let site = site(Config { stall_timeout: Duration::from_millis(50), ..Config::default() });
    site.chat("one two", json!({})); // gives the engine an expected step duration
    let stuck = ask(&site, "stick", false);
    wait_until(|| site.get("/health").status == 503);
    for (status, code, message) in answers(&site) {
        assert_eq!((status, code.as_str()), (503, "engine_stuck"), "{message}");
        assert!(message.starts_with("the engine is stuck: the current step has run for "), "{message}");
    }
    assert!(site.get("/metrics").text.contains("tern:engine_up{model_name=\"parrot\"} 0"));
    site.faults.released.store(true, Ordering::Relaxed);
    assert_eq!(reply(stuck).status, 200);
    assert_eq!(site.get("/health").status, 200);
    assert_eq!(site.get("/ready").status, 200);
    assert_eq!(site.chat("one", json!({})).json()["choices"][0]["message"]["content"], "one");
    assert!(site.get("/metrics").text.contains("tern:engine_up{model_name=\"parrot\"} 1"));
}

#[test]
fn the_first_check_after_a_stall_fails() {
    for ready_interval in [Duration::ZERO, Duration::from_secs(60)] {
        let ready_deadline = Duration::from_millis(100);
        let site = site(Config { ready_interval, ready_deadline, ..Config::default() });
        assert_eq!(site.get("/ready").status, 200);
        // steps since the last check, all before the stall
        site.chat("one two three", json!({}));
        let stuck = ask(&site, "stick", false);
        wait_until(|| site.handle.stats().running == 1);
        let reply = site.get("/ready");
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("engine_stuck")));
        assert!(reply.message().starts_with("the engine has completed no step for "), "{}", reply.message());
        assert_eq!(site.get("/health").status, 200, "it may be a long step");
        // the next check fails immediately
        let start = Instant::now();
        let deadline = Duration::from_secs(5);
        assert_eq!(site.get("/ready").status, 503);
        assert!(start.elapsed() < deadline, "{:?}", start.elapsed());
        site.faults.released.store(true, Ordering::Relaxed);
        drop(stuck);
        site.wait_until_idle();
        assert_eq!(site.get("/ready").status, 200);
    }
}

#[test]
fn a_stuck_engine_does_not_delay_a_shutdown() {
    let site = site(Config { drain_timeout: Duration::from_millis(100), ..Config::default() });
    let stuck = ask(&site, "stick", true);
    wait_until(|| site.handle.stats().running == 1);
    let faults = site.faults.clone();
    let stopped = site.stop();
    assert!(last_event(&reply(stuck).text).contains("shutting_down"));
    wait_until(|| stopped.is_finished());
    assert_eq!(stopped.join().unwrap(), Ok(()));
    faults.released.store(true, Ordering::Relaxed);
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server() {
    let end = |report: fn(tern_server::Loader)| {
        let (mut site, loader) = Site::loading(Setup::default());
        assert_eq!(site.get("/health").status, 200);
        let _ = thread::spawn(move || report(loader)).join();
        site.end().unwrap_err().to_string()
    };
    let because = |why: &str| format!("the model could not be loaded: {why}");
    assert_eq!(end(|loader| loader.failed("no such file")), because("no such file"));
    assert_eq!(end(drop), because("loading ended without a model"));
    let panics = |loader| {
        let _loader = loader;
        panic!("on purpose");
    };
    assert_eq!(end(panics), because("loading the model panicked; see the panic message in the log"));
}

#[test]
fn a_template_that_fails_at_load_does_not_block_requests() {
    let (mut site, loader) = Site::loading(Setup::default());
    // it is rendered once to detect its features: that may succeed or panic, but must be reported
    let model =
        site.model(Some("{% for m in messages %}{{ loop.cycle() }}{{ 1 is divisibleby 0 }}{% endfor %}"));
    match thread::spawn(move || loader.ready(model)).join() {
        Ok(()) => assert_eq!(site.get("/v1/models").status, 200),
        Err(_) => assert!(site.end().unwrap_err().to_string().contains("panicked")),
    }
}
