//! The routes without a network.

use std::time::Duration;

use serde_json::{Value, json};
use tern_server::{Config, InProcess, Server};
use tokio::time::{sleep, timeout};

use crate::support::{LIMITS, PLAIN, SiteModel};

fn routes(config: Config) -> (InProcess, SiteModel) {
    let model = SiteModel::new(LIMITS);
    let server = Server::new(config);
    server.loader().ready(model.served(Some(PLAIN)));
    (server.in_process(), model)
}

/// The status and the whole body of a response.
async fn call(routes: &InProcess, method: &str, path: &str, body: Value) -> (u16, String) {
    let mut reply = routes.request(method, path, [], body.to_string().into()).await;
    let mut text = Vec::new();
    while let Some(piece) = reply.next().await {
        text.extend_from_slice(&piece);
    }
    (reply.status(), String::from_utf8(text).unwrap())
}

fn chat(say: &str, stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": format!("say:{say}")}], "stream": stream})
}

#[tokio::test]
async fn bodies_events_and_errors_are_those_of_the_server() {
    let (routes, _model) = routes(Config::default());
    let (status, text) = call(&routes, "POST", "/v1/chat/completions", chat("hello", false)).await;
    let reply: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &reply["choices"][0]["message"]["content"]), (200, &json!("hello")));
    let (_, text) = call(&routes, "POST", "/v1/chat/completions", chat("hello", true)).await;
    assert!(text.starts_with("data: {") && text.ends_with("data: [DONE]\n\n"), "{text}");
    for (method, path, body, want) in [
        ("POST", "/v1/chat/completions", json!({"messages": 1}), 400),
        ("GET", "/nowhere", Value::Null, 404),
        ("GET", "no path", Value::Null, 400),
        ("\n", "/health", Value::Null, 400),
    ] {
        let (status, text) = call(&routes, method, path, body).await;
        assert_eq!(status, want, "{text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(error["error"]["message"].is_string(), "{text}");
    }
}

#[tokio::test]
async fn a_dropped_reply_cancels_its_request() {
    let (routes, model) = routes(Config::default());
    let mut reply =
        routes.request("POST", "/v1/chat/completions", [], chat("endless", true).to_string().into()).await;
    assert!(reply.next().await.is_some());
    assert_eq!(model.handle.stats().running, 1);
    drop(reply);
    let ended = async {
        while model.handle.stats().running > 0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(10), ended).await.unwrap();
}

#[tokio::test]
async fn keys_are_checked_and_a_stop_ends_all() {
    let (routes, _model) = routes(Config { api_keys: vec!["secret".into()], ..Config::default() });
    assert_eq!(call(&routes, "GET", "/v1/models", Value::Null).await.0, 401);
    let headers = [("x-api-key".to_owned(), "secret".to_owned())];
    let mut reply = routes
        .request("POST", "/v1/chat/completions", headers, chat("endless", true).to_string().into())
        .await;
    assert_eq!(reply.status(), 200);
    assert!(reply.headers().any(|(name, _)| name == "x-request-id"));
    assert!(reply.next().await.is_some());
    routes.stop();
    let mut last = Vec::new();
    while let Some(piece) = timeout(Duration::from_secs(10), reply.next()).await.unwrap() {
        last = piece.to_vec();
    }
    assert!(String::from_utf8_lossy(&last).contains("shutting_down"));
}
