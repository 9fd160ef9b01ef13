//! Clients that do not read, pipeline too many requests or open too many connections do not
//! affect others or `/health`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tern_server::Config;

use crate::support::{Reply, Setup, Site, parse};

/// A connection that sends and does not close by itself.
fn connect(site: &Site, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(site.addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Repeats a request until it gets a connection slot.
fn get_when_free(site: &Site, path: &str) -> Reply {
    let start = Instant::now();
    loop {
        let reply = site.get(path);
        if reply.status != 503 || start.elapsed() > Duration::from_secs(10) {
            return reply;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn refused(reply: &Reply, message: &str) {
    assert_eq!((reply.status, reply.message().as_str()), (503, message));
    assert_eq!(reply.json()["error"]["code"], "too_many_connections");
    assert_eq!((reply.header("retry-after"), reply.header("connection")), (Some("1"), Some("close")));
}

#[test]
fn clients_that_read_nothing_lose_their_slots() {
    let config = Config { max_connections: 3, write_timeout: Duration::from_secs(1), ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    // a response of some megabytes, more than the socket buffers hold
    let body = json!({"prompt": "1 ".repeat(400_000), "return_token_strs": true}).to_string();
    let head =
        format!("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    let silent: Vec<TcpStream> =
        (0..3).map(|_| connect(&site, &[head.as_bytes(), body.as_bytes()].concat())).collect();
    refused(&site.get("/v1/models"), "too many connections: the limit is 3");
    assert_eq!(site.get("/health").status, 200);
    assert_eq!(get_when_free(&site, "/v1/models").status, 200);
    drop(silent);
}

#[test]
fn the_oldest_connection_without_a_slot_is_closed() {
    let config = Config { max_connections: 1, ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let _with_slot = site.open_chat("endless");
    let _silent: Vec<TcpStream> = (0..200).map(|_| connect(&site, b"")).collect();
    let start = Instant::now();
    assert_eq!(site.get("/health").status, 200);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn connections_per_address_are_limited() {
    let config = Config { max_connections_per_peer: 2, ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let both = [connect(&site, b""), connect(&site, b"")];
    let message = "too many connections from 127.0.0.1: the limit is 2";
    refused(&site.get("/v1/models"), message);
    assert_eq!(site.get("/health").status, 200);
    drop(both);
    assert_eq!(get_when_free(&site, "/v1/models").status, 200);
}

#[test]
fn pipelined_requests_are_limited() {
    let site = Site::new(Setup::default());
    let request = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut text = String::new();
    connect(&site, request.repeat(150).as_bytes()).read_to_string(&mut text).unwrap();
    let answers = text.matches("HTTP/1.1 200 OK").count();
    assert!((16..=60).contains(&answers), "{answers}");
    assert_eq!(text.matches("connection: close").count(), 1);
    // a client that waits for responses is not limited
    let mut stream = connect(&site, b"");
    let mut buffer = [0; 4096];
    for _ in 0..100 {
        stream.write_all(request.as_bytes()).unwrap();
        let count = stream.read(&mut buffer).unwrap();
        assert!(buffer[..count].starts_with(b"HTTP/1.1 200 OK"));
    }
}

#[test]
fn a_client_without_a_key_gets_the_reason_before_the_close() {
    let config = Config { api_keys: vec!["k".into()], ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let get = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(2);
    // it gets the response even if it is still sending
    let post = |bytes: usize| {
        let head =
            format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n");
        head + &" ".repeat(bytes)
    };
    for request in [get, post(300_000), post(15 << 20)] {
        let mut bytes = Vec::new();
        connect(&site, request.as_bytes()).read_to_end(&mut bytes).unwrap();
        let reply = parse(&bytes);
        assert_eq!((reply.status, reply.header("connection")), (401, Some("close")));
        assert_eq!(reply.text.matches("invalid_api_key").count(), 1);
    }
}
