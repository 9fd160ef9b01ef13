//! Request bodies: limits on bytes and JSON values.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tern_server::Config;

use crate::support::{Reply, Setup, Site};

/// Maximum JSON values of a body.
const VALUES: usize = 1 << 17;

/// Many values in few bytes.
fn lists(count: usize) -> String {
    format!("[{}[]]", "[],".repeat(count))
}

/// A chat with more members.
fn chat(site: &Site, more: &str) -> Reply {
    let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"say:ok\"}}], {more}}}");
    site.send("POST", "/v1/chat/completions", &[], body.as_bytes())
}

#[test]
fn a_body_of_too_many_values_is_refused() {
    let site = Site::new(Setup::default());
    let message = "the request body has more than 131072 JSON values";
    let tool = format!(
        "\"tools\": [{{\"type\": \"function\", \"function\": {{\"name\": \"f\", \"parameters\": {{\"a\": {}}}}}}}]",
        lists(VALUES)
    );
    let members: String = (0..VALUES).map(|i| format!("\"k{i}\": 1,")).collect();
    for more in [
        format!("\"tools\": {}", lists(VALUES)),
        format!("\"unknown\": {}", lists(VALUES)),
        format!("\"stop\": {}", lists(VALUES)),
        tool,
        format!("{members}\"n\": 1"),
    ] {
        let reply = chat(&site, &more);
        assert_eq!((reply.status, reply.message().as_str()), (400, message));
    }
}

#[test]
fn the_arguments_of_earlier_calls_share_a_limit() {
    let site = Site::new(Setup::default());
    let call = |count| {
        let arguments = format!("{{\"a\": {}}}", lists(count));
        json!({"type": "function", "function": {"name": "f", "arguments": arguments}})
    };
    let body = |calls: Vec<Value>| {
        json!({"messages": [
            {"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "say:ok"},
        ]})
    };
    let reply = site.post("/v1/chat/completions", body(vec![call(VALUES / 2), call(VALUES / 2)]));
    let message = "messages[0].tool_calls[1].function.arguments: more than 131072 JSON values";
    assert_eq!((reply.status, reply.message().as_str()), (400, message));
    assert_eq!(site.post("/v1/chat/completions", body(vec![call(2), call(2)])).status, 200);
}

#[test]
fn ignored_parameters_are_skipped_regardless_of_size() {
    let site = Site::new(Setup::default());
    for name in ["metadata", "moderation", "store"] {
        let reply = chat(&site, &format!("\"{name}\": {}", lists(3 * VALUES)));
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "ok", "{}", reply.text);
    }
}

#[test]
fn token_ids_do_not_count_as_values() {
    let site = Site::new(Setup::default());
    let reply = site.post("/v1/completions", json!({"prompt": vec![1; 2 * VALUES]}));
    let message = "prompt: this model's maximum context length is 512 tokens, but the text has 262144";
    assert_eq!(reply.message(), message);
    let reply = site.post("/detokenize", json!({"tokens": vec![1; 2 * VALUES]}));
    assert_eq!(reply.status, 200);
    let body = format!("{{\"prompt\": {}}}", lists(VALUES));
    let reply = site.send("POST", "/v1/completions", &[], body.as_bytes());
    assert_eq!(reply.message(), "prompt: 131073 choices (prompts times n) exceed the limit of 128");
}

#[test]
fn tools_have_a_size_and_a_depth() {
    let site = Site::new(Setup::default());
    let tools = |parameters: Value| json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let with =
        |parameters: Value| site.chat("ok", json!({"tools": tools(parameters), "tool_choice": "none"}));
    let large = json!({"description": "x".repeat(512 << 10)});
    let bytes = tools(large.clone()).to_string().len() - 2; // without the brackets of the array
    let message = format!("tools: {bytes} bytes as JSON exceed the limit of 524288");
    assert_eq!((with(large.clone()).status, with(large).message()), (400, message));
    let deep = (0..70).fold(json!(1), |inner, _| json!({"a": inner}));
    let reply = with(deep);
    assert_eq!(reply.message(), "tools: 72 levels of nesting exceed the limit of 64");
    assert_eq!(with((0..50).fold(json!(1), |inner, _| json!({"a": inner}))).status, 200);
}

#[test]
fn bodies_share_a_memory_limit() {
    let config = Config { max_body: 1000, max_bodies: 1500, ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let body = format!("{{\"prompt\": \"a\"{}}}", " ".repeat(850));
    // an incomplete body whose client sends no more
    let head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n";
    let mut waiting = TcpStream::connect(site.addr).unwrap();
    waiting.write_all(&[&head[..], " ".repeat(900).as_bytes()].concat()).unwrap();
    thread::sleep(Duration::from_millis(200));
    let reply = site.send("POST", "/tokenize", &[], body.as_bytes());
    let message = "all request bodies together exceed the limit of 1500 bytes: retry later";
    assert_eq!((reply.status, reply.message().as_str()), (503, message));
    assert_eq!(
        (reply.header("retry-after"), &reply.json()["error"]["code"]),
        (Some("1"), &json!("bodies_full"))
    );
    drop(waiting);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(site.send("POST", "/tokenize", &[], body.as_bytes()).status, 200);
}

/// The address space of this process in bytes, of which the server is a part.
fn address_space() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
}

#[test]
fn what_a_client_declares_and_does_not_send_takes_no_memory() {
    let site = Site::new(Setup::default());
    let threads: Vec<_> =
        (0..8).map(|_| site.open("POST", "/tokenize", &[], b"{\"prompt\": \"a\"}")).collect();
    drop(threads); // all threads run
    thread::sleep(Duration::from_millis(200));
    let before = address_space();
    let head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16777216\r\n\r\n{";
    let connect = |_| {
        let mut stream = TcpStream::connect(site.addr).unwrap();
        stream.write_all(head).unwrap();
        stream
    };
    let waiting: Vec<TcpStream> = (0..128).map(connect).collect();
    thread::sleep(Duration::from_millis(500));
    let grown = address_space().saturating_sub(before);
    assert!(grown < 512 << 20, "{grown} bytes for 128 connections");
    assert_eq!(site.post("/tokenize", json!({"prompt": "a"})).status, 200);
    drop(waiting);
}
