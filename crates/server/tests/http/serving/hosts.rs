//! DNS rebinding: requests of a page whose name resolves to this machine are refused.

use serde_json::json;
use tern_server::Config;

use crate::support::{Reply, Setup, Site};

/// A chat as a page on `host` would send it.
fn chat(site: &Site, host: &str) -> Reply {
    let body = json!({"messages": [{"role": "user", "content": "say:ok"}]}).to_string();
    let origin = format!("http://{host}");
    let head = [("origin", origin.as_str()), ("content-type", "text/plain")];
    site.send_to(host, "POST", "/v1/chat/completions", &head, body.as_bytes())
}

#[test]
fn a_page_on_another_name_is_refused_on_loopback() {
    let site = Site::new(Setup::default());
    let port = site.addr.port();
    let reply = chat(&site, &format!("evil.example:{port}"));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (403, &json!("host_not_allowed")));
    assert!(reply.message().starts_with("host name not allowed: "), "{}", reply.text);
    for path in ["/", "/v1/models", "/metrics", "/ready", "/nothing"] {
        assert_eq!(site.send_to("evil.example", "GET", path, &[], b"").status, 403, "{path}");
    }
    assert_eq!(site.handle.stats().tokens_generated, 0);
    // a probe may use any name
    assert_eq!(site.send_to("evil.example", "GET", "/health", &[], b"").status, 200);
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        assert_eq!(chat(&site, &format!("{host}:{port}")).status, 200, "{host}");
    }
}

#[test]
fn a_configured_name_is_allowed() {
    let config = Config { allowed_hosts: vec!["chat.example.com".into()], ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    assert_eq!(chat(&site, "chat.example.com").status, 200);
    assert_eq!(chat(&site, "evil.example").status, 403);
    // the origin is still checked
    let body = json!({"prompt": "a"}).to_string();
    let head = [("origin", "http://evil.example")];
    let reply = site.send_to("chat.example.com", "POST", "/v1/completions", &head, body.as_bytes());
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (403, &json!("foreign_origin")));
}
