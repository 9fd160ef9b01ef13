//! One client with many requests does not keep another one waiting.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tern::engine::Limits;

use crate::support::{LIMITS, Setup, Site};

fn body(user: &str, say: &str) -> Value {
    json!({"user": user, "messages": [{"role": "user", "content": format!("say:{say}")}]})
}

#[test]
fn a_full_queue_and_full_slots_are_those_of_one_client() {
    let limits = Limits { max_seqs: 2, max_waiting: 32, ..LIMITS };
    let site = Site::new(Setup { limits, ..Setup::default() });
    let endless = body("many", "endless").to_string();
    let open = || site.open("POST", "/v1/chat/completions", &[], endless.as_bytes());
    let many: Vec<TcpStream> = (0..34).map(|_| open()).collect();
    let start = Instant::now();
    let held = || site.handle.stats().running + site.handle.stats().waiting;
    while held() < 34 && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = site.post("/v1/chat/completions", body("many", "hello"));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (429, &json!("queue_full")),
        "{}",
        refused.text
    );
    let one = site.post("/v1/chat/completions", body("one", "hello"));
    assert_eq!(one.json()["choices"][0]["message"]["content"], "hello", "{}", one.text);
    let stats = site.handle.stats();
    assert!(stats.preemptions > 0 && stats.waiting > 20, "it did not wait for a slot: {stats:?}");
    drop(many);
    site.wait_until_idle();
}
