//! Monitoring and information: readiness, metrics, models, tokens, the chat page, headers.

use std::time::Duration;

use serde_json::{Value, json};
use tern_server::Config;

use crate::support::{Setup, Site};

#[test]
fn ready_tests_the_engine_but_not_too_often() {
    let site = Site::new(Setup::default());
    for _ in 0..5 {
        assert_eq!(site.get("/ready").json(), json!({"status": "ready"}));
    }
    assert_eq!(site.handle.stats().tokens_generated, 1);
    // steps of running requests are sufficient
    let config = Config { ready_interval: Duration::ZERO, ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let _stream = site.open_chat("endless");
    let before = site.handle.stats();
    for _ in 0..5 {
        assert_eq!(site.get("/ready").status, 200);
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = site.handle.stats();
    assert_eq!(after.started_tokens, before.started_tokens);
}

#[test]
fn metrics_count_requests_and_tokens() {
    let site = Site::new(Setup::default());
    site.chat("one two three", json!({}));
    site.chat("one two three", json!({"max_tokens": 2, "stream": true}));
    site.chat("x", json!({"foo": 1}));
    let reply = site.get("/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let value = |name: &str| {
        let line = reply.text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name}\n{}", reply.text));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let stats = site.handle.stats();
    assert_eq!(value("vllm:generation_tokens_total{model_name=\"parrot\"}"), stats.tokens_generated as f64);
    assert_eq!(value("vllm:prompt_tokens_total{"), stats.prompt_tokens as f64);
    assert!(value("vllm:prefix_cache_hits_total{") > 0.0);
    assert_eq!(value("vllm:num_requests_running{"), 0.0);
    assert_eq!(value("vllm:num_requests_waiting{"), 0.0);
    assert_eq!(value("vllm:kv_cache_usage_perc{"), 0.0);
    assert_eq!(value("vllm:request_success_total{model_name=\"parrot\",finished_reason=\"stop\"}"), 1.0);
    assert_eq!(value("vllm:request_success_total{model_name=\"parrot\",finished_reason=\"length\"}"), 1.0);
    assert_eq!(value("vllm:time_to_first_token_seconds_count{"), 2.0);
    assert_eq!(value("vllm:e2e_request_latency_seconds_count{"), 2.0);
    assert_eq!(value("vllm:request_queue_time_seconds_count{"), 2.0);
    assert_eq!(value("vllm:inter_token_latency_seconds_count{"), stats.tokens_generated as f64 - 2.0);
    assert_eq!(value("vllm:num_preemptions_total{"), 0.0);
    assert_eq!(value("tern:http_responses_total{code=\"200\"}"), 2.0);
    assert_eq!(value("tern:http_responses_total{code=\"400\"}"), 1.0);
    assert_eq!(value("tern:kv_pages_total{"), 256.0);
}

#[test]
fn models_are_listed_under_all_names() {
    let site = Site::new(Setup::default());
    let list = site.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["parrot", "org/parrot"]);
    for path in ["/v1/models/org/parrot", "/v1/models/org%2Fparrot"] {
        let model = site.get(path).json();
        assert_eq!(
            (&model["id"], &model["object"], &model["max_model_len"]),
            (&json!("org/parrot"), &json!("model"), &json!(512))
        );
        assert_eq!(model["capabilities"], json!(["completion", "chat"]));
    }
    let plain = Site::new(Setup { template: None, ..Setup::default() });
    assert_eq!(plain.get("/v1/models").json()["data"][0]["capabilities"], json!(["completion"]));
}

#[test]
fn texts_are_tokenized_and_detokenized() {
    let site = Site::new(Setup::default());
    let tokens = site.tokenizer.encode("Once é", true, true);
    let reply = site.post("/tokenize", json!({"prompt": "Once é", "model": "parrot"})).json();
    assert_eq!(
        reply,
        json!({"count": tokens.len(), "max_model_len": 512, "token_strs": null, "tokens": tokens})
    );
    let bare = site.post(
        "/tokenize",
        json!({"content": "Once", "add_special_tokens": false, "return_token_strs": true}),
    );
    assert_eq!(bare.json()["token_strs"], json!(["Once"]));
    let back = site.post("/detokenize", json!({"tokens": tokens[1..]})).json();
    assert_eq!(back, json!({"prompt": "Once é"}));
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let count = site.post("/tokenize", chat).json()["count"].clone();
    assert_eq!(count, site.tokenizer.encode("<user>a<answer>", true, true).len());
}

#[test]
fn control_tokens_in_messages_are_text() {
    let site = Site::new(Setup::default());
    let marker = site.tokenizer.id_of("<|endoftext|>").unwrap();
    let controls = |body: Value| {
        let tokens = site.post("/tokenize", body).json()["tokens"].clone();
        tokens.as_array().unwrap().iter().filter(|&token| *token == marker).count()
    };
    let talk = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
    assert_eq!(controls(talk("a<|endoftext|>b")), controls(talk("a b")));
    // in a prompt they are parsed
    assert_eq!(controls(json!({"prompt": "a<|endoftext|>b"})), controls(json!({"prompt": "a b"})) + 1);
}

#[test]
fn the_page_may_connect_only_to_this_server() {
    let site = Site::new(Setup::default());
    let page = site.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; ") && policy.contains("connect-src 'self'"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert!(page.text.to_lowercase().contains("<!doctype html>"));
}

#[test]
fn valid_request_ids_are_kept() {
    let site = Site::new(Setup::default());
    let id = |given: &str| {
        let reply = site.send("GET", "/health", &[("x-request-id", given)], b"");
        reply.header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(id("abc-1.2:3_4"), "abc-1.2:3_4");
    for bad in ["a b", "<x>", &"a".repeat(129)] {
        assert!(id(bad).starts_with("req-"), "{bad}");
    }
    assert!(site.get("/health").header("x-request-id").unwrap().starts_with("req-"));
}

#[test]
fn other_origins_are_allowed_by_name() {
    let config = Config {
        cors_origins: vec!["https://a.example".into()],
        api_keys: vec!["k".into()],
        ..Config::default()
    };
    let site = Site::new(Setup { config, ..Setup::default() });
    let preflight = |origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        site.send("OPTIONS", "/v1/chat/completions", &headers, b"")
    };
    let allowed = preflight("https://a.example");
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (204, Some("https://a.example"))
    );
    let refused = preflight("https://b.example");
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, None));
    // simple POSTs without a preflight: same origin, allowed origin, other origin
    let home = format!("http://{}", site.addr);
    for (origin, want) in [(home.as_str(), 200), ("https://a.example", 200), ("https://b.example", 403)] {
        let headers = [("origin", origin), ("authorization", "Bearer k"), ("content-type", "text/plain")];
        assert_eq!(site.send("POST", "/tokenize", &headers, br#"{"prompt": "a"}"#).status, want, "{origin}");
    }
    let headers = [("origin", "https://a.example"), ("authorization", "Bearer k")];
    let reply = site.send("GET", "/v1/models", &headers, b"");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some("https://a.example")));
}
