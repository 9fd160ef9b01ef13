//! `/v1/messages`: blocks, events, stop sequences and errors in Anthropic's shape.

use serde_json::{Value, json};
use tern_server::Config;

use crate::support::recorded;
use crate::support::{HERMES, Setup, Site};

fn site() -> Site {
    Site::new(Setup { template: Some(HERMES), ..Setup::default() })
}

/// Reasoning, text and a call.
fn everything() -> Value {
    let say = "say:Hm.</think>Well.<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";
    json!({
        "max_tokens": 200, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [{"role": "user", "content": say}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}],
    })
}

fn message(say: &str, more: Value) -> Value {
    let mut body = json!({"max_tokens": 50, "messages": [{"role": "user", "content": format!("say:{say}")}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn an_answer_has_a_block_per_kind_of_content() {
    let reply = site().post("/v1/messages", everything()).json();
    let blocks = &reply["content"];
    assert_eq!((&blocks[0]["type"], &blocks[0]["thinking"]), (&json!("thinking"), &json!("Hm.")), "{reply}");
    // no citations: some clients refuse null
    assert_eq!(blocks[1], json!({"type": "text", "text": "Well."}));
    assert_eq!((&blocks[2]["name"], &blocks[2]["input"]), (&json!("f"), &json!({"x": 1})));
    assert_eq!(reply["stop_reason"], "tool_use");
}

#[test]
fn every_kind_of_event_is_as_recorded() {
    let mut body = everything();
    body["stream"] = true.into();
    let events = recorded::events(&site().post("/v1/messages", body).text);
    recorded::check("messages.jsonl", &events);
}

#[test]
fn the_reason_of_the_end_is_reported() {
    let site = site();
    let ends = |body: Value| {
        let reply = site.post("/v1/messages", body).json();
        (reply["stop_reason"].clone(), reply["stop_sequence"].clone())
    };
    assert_eq!(ends(message("a", json!({}))), (json!("end_turn"), Value::Null));
    assert_eq!(ends(message("endless", json!({"max_tokens": 2}))), (json!("max_tokens"), Value::Null));
    let stops = json!({"stop_sequences": ["zz", "d e"]});
    assert_eq!(ends(message("c d e f", stops)), (json!("stop_sequence"), json!("d e")));
}

#[test]
fn tokens_are_counted_without_an_answer() {
    let site = site();
    let body = message("a", json!({"system": "Be kind."}));
    let usage = site.post("/v1/messages", body.clone()).json()["usage"].clone();
    let mut body = body;
    body.as_object_mut().unwrap().remove("max_tokens");
    let count = site.post("/v1/messages/count_tokens", body).json();
    assert_eq!(count, json!({"input_tokens": usage["input_tokens"]}));
    let long = message(&"word ".repeat(2000), json!({}));
    assert!(site.post("/v1/messages/count_tokens", long).json()["input_tokens"].as_u64().unwrap() > 512);
}

#[test]
fn errors_have_anthropics_shape() {
    let config = Config { api_keys: vec!["key".into()], ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let post = |key: &str, body: Value| {
        let headers = [("x-api-key", key), ("anthropic-version", "2023-06-01")];
        site.send("POST", "/v1/messages", &headers, body.to_string().as_bytes())
    };
    for (key, body, status, kind, message) in [
        (
            "key",
            json!({"messages": []}),
            400,
            "invalid_request_error",
            "missing required parameter: \"max_tokens\"",
        ),
        (
            "key",
            message("a", json!({"mood": 1})),
            400,
            "invalid_request_error",
            "unknown parameter: \"mood\"",
        ),
        (
            "key",
            message("a", json!({"stop_sequences": [""]})),
            400,
            "invalid_request_error",
            "stop_sequences: strings must not be empty",
        ),
        (
            "key",
            message("a", json!({"model": "claude"})),
            404,
            "not_found_error",
            "the model \"claude\" does not exist; this server has \"parrot\"",
        ),
        (
            "other",
            message("a", json!({})),
            401,
            "authentication_error",
            "missing or invalid API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`",
        ),
    ] {
        let reply = post(key, body);
        let want = json!({"type": "error", "error": {"type": kind, "message": message}});
        assert_eq!((reply.status, reply.json()), (status, want));
    }
    assert_eq!(post("key", message("fine", json!({}))).json()["content"][0]["text"], "fine");
}
