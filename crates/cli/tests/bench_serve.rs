//! `tern bench serve` against the real server with the embedded model, and against servers with other habits.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Home, Server};

impl Server {
    /// One with the embedded model, which is loaded.
    fn of_stories(home: &Home, flags: &[&str]) -> Server {
        let server = Server::start(home, &[&["-m", "stories"][..], flags].concat());
        let start = Instant::now();
        while !server.is_ready() {
            assert!(start.elapsed() < Duration::from_secs(60), "the model was not loaded");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn is_ready(&self) -> bool {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        let head =
            "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key\r\nconnection: close";
        write!(stream, "{head}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.starts_with("HTTP/1.1 200")
    }
}

#[test]
fn a_tern_server_is_measured_in_rounds() {
    let home = Home::new();
    let server = Server::of_stories(&home, &["--api-key", "key"]);
    let flags = ["--prompt-tokens", "40", "--output-tokens", "12", "--seed", "3", "--api-key", "key"];
    let bench = |more: &[&str]| home.run(&[&["bench", "serve", &server.url][..], &flags, more].concat());

    let ran = bench(&["--streams", "1,4", "--requests", "6", "--json", "out.json", "--plot", "out.svg"]);
    let lines: Vec<&str> = ran.ok().lines().collect();
    let head = format!("stories at {}/v1/completions, 40 input and 12 output tokens per request", server.url);
    assert_eq!((lines.len(), lines[0], lines[1]), (5, head.as_str(), ""), "{}", ran.stdout());
    assert!(lines[2].starts_with("streams    ok failed   input"), "{}", lines[2]);
    for (line, streams) in lines[3..].iter().zip(["1", "4"]) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[..4], [streams, "6", "0", "40.0"], "exact lengths: {line}");
    }
    assert_eq!(ran.stderr(), "", "no progress without a terminal");

    let all: Value = serde_json::from_slice(&std::fs::read(home.path("out.json")).unwrap()).unwrap();
    assert_eq!(
        (&all["model_id"], &all["seed"], &all["request_rate"]),
        (&json!("stories"), &json!(3), &Value::Null)
    );
    let rounds = all["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        assert_eq!((&round["completed"], &round["failed"]), (&json!(6), &json!(0)));
        assert_eq!(
            round["output_lens"],
            json!([12, 12, 12, 12, 12, 12]),
            "the model's end tokens are ignored"
        );
        assert_eq!((&round["total_input_tokens"], &round["total_output_tokens"]), (&json!(240), &json!(72)));
        let number = |key: &str| round[key].as_f64().unwrap();
        assert!(number("median_ttft_ms") > 0.0 && number("p99_ttft_ms") >= number("median_ttft_ms"));
        assert!(number("mean_e2el_ms") >= number("mean_ttft_ms"));
        let rate = number("total_output_tokens") / number("duration");
        assert!((number("output_throughput") / rate - 1.0).abs() < 1e-6);
        assert!(round["itls"][0].as_array().unwrap().len() <= 11);
    }
    let svg = std::fs::read_to_string(home.path("out.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("4 streams, P99"), "{svg}");

    let ran = bench(&["--rate", "200", "--requests", "5", "--plot", "out.html", "--json", "-"]);
    let all = ran.json();
    assert_eq!((&all["request_rate"], &all["rounds"][0]["completed"]), (&json!(200.0), &json!(5)));
    assert_eq!(all["rounds"][0]["arrivals"].as_array().unwrap().len(), 5);
    assert!(std::fs::read_to_string(home.path("out.html")).unwrap().contains("Inter-token latency"));

    let table = bench(&["--requests", "2", "--warmup", "0"]);
    assert!(table.ok().contains("Successful requests                       2\n"), "{}", table.stdout());
    assert!(table.ok().contains("Time to first token (TTFT) "), "{}", table.stdout());
}

#[test]
fn a_server_that_loads_its_model_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (i, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let (status, body) = match i {
                0 => ("503 Service Unavailable", r#"{"error": {"message": "the model is loading"}}"#),
                _ => ("200 OK", r#"{"data": []}"#),
            };
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
            let _ = write!(&stream, "{head}\r\n\r\n{body}");
        }
    });
    let ran = Home::new().run(&["bench", "serve", &address]);
    let lines: Vec<&str> = ran.stderr().lines().collect();
    assert_eq!(lines[0], "tern: waiting for the server: HTTP 503: the model is loading");
    assert!(lines[1].ends_with("no model in the response; name one with --model"), "{}", lines[1]);
}

#[test]
fn errors_of_a_server_are_shown() {
    let home = Home::new();
    let server = Server::of_stories(&home, &["--api-key", "key"]);
    let bench = |more: &[&str]| home.run(&[&["bench", "serve", &server.url][..], more].concat());
    let message = bench(&[]).refusal().to_string();
    assert!(message.starts_with(&format!("{}/v1/models: HTTP 401: ", server.url)), "{message}");
    let message = bench(&["--api-key", "key", "--model", "other"]).refusal().to_string();
    assert!(message.starts_with(&format!("{}/v1/completions: HTTP 404: ", server.url)), "{message}");
    let message = bench(&["--api-key", "key", "--endpoint", "chat"]).refusal().to_string();
    assert!(message.contains("chat template"), "{message}");

    // longer than the model's context
    let ran = bench(&["--api-key", "key", "--prompt-tokens", "400", "--requests", "3"]);
    assert_eq!(ran.0.status.code(), Some(1));
    assert!(ran.stdout().contains("Failed requests                           3\n"), "{}", ran.stdout());
    assert!(ran.stderr().contains("tern: 1 streams: 3 of 3 requests failed: HTTP 400: "), "{}", ran.stderr());
    assert!(ran.stderr().ends_with("tern: every request failed\n"), "{}", ran.stderr());

    let message = home.run(&["bench", "serve", "127.0.0.1:1"]).refusal().to_string();
    assert!(message.starts_with("http://127.0.0.1:1/v1/models: "), "{message}");
    let usage = home.run(&["bench", "serve", "ftp://x"]);
    assert!(usage.usage().contains("expected a URL such as http://127.0.0.1:8080"), "{}", usage.stderr());
    let usage = home.run(&["bench", "serve", "x", "--plot", "a.png"]);
    assert!(usage.usage().contains("ends in .svg or .html"), "{}", usage.stderr());
}

/// A server that accepts only OpenAI's own parameters, ends early, and writes an event in pieces.
fn openai_server(usage: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || while answer(&stream, usage).is_some() {});
        }
    });
    url
}

/// Answers one request of a connection; none at its end.
fn answer(mut stream: &TcpStream, usage: bool) -> Option<()> {
    let (mut head, mut byte) = (vec![], [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    if head.starts_with("get /v1/models ") {
        return write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").ok(); // it has no list
    }
    assert!(head.starts_with("post /v1/chat/completions "), "{head}");
    let length =
        head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&body["model"], &body["stream"]), (&json!("gpt"), &json!(true)));
    let unknown = ["ignore_eos", "min_tokens"].into_iter().find(|name| body.get(*name).is_some());
    let unknown = unknown.or((!usage && body.get("stream_options").is_some()).then_some("stream_options"));
    if let Some(name) = unknown {
        let text = json!({"error": {"message": format!("Unrecognized request argument supplied: {name}")}})
            .to_string();
        let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: ";
        return write!(stream, "{head}{}\r\n\r\n{text}", text.len()).ok();
    }
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    .ok()?;
    let mut part = |text: &str| {
        write!(stream, "{:x}\r\n{text}\r\n", text.len()).ok()?;
        stream.flush().ok()
    };
    part(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
    )?;
    thread::sleep(Duration::from_millis(20));
    for _ in 0..4.min(body["max_tokens"].as_u64().unwrap()) {
        part("data: {\"choices\":[{\"delta\":{\"con")?;
        thread::sleep(Duration::from_millis(2));
        part("tent\":\"a\"},\"finish_reason\":null}],\"usage\":null}\n\n")?;
    }
    part("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n")?;
    if usage {
        let words = body["messages"][0]["content"].as_str().unwrap().split(' ').count();
        let usage = json!({"prompt_tokens": 7 + words, "completion_tokens": 4, "total_tokens": 11 + words});
        part(&format!("data: {}\n\n", json!({"choices": [], "usage": usage})))?;
    }
    part("data: [DONE]\n\n")?;
    write!(stream, "0\r\n\r\n").ok()
}

#[test]
fn servers_without_the_parameters_of_vllm_are_measured_as_they_answer() {
    let home = Home::new();
    let flags =
        ["--endpoint", "chat", "--model", "gpt", "--requests", "4", "--streams", "2", "--json", "out.json"];
    let run = |usage| {
        let ran = home.run(&[&["bench", "serve", &openai_server(usage)][..], &flags].concat());
        ran.ok();
        let all: Value = serde_json::from_slice(&std::fs::read(home.path("out.json")).unwrap()).unwrap();
        (ran.stderr().to_string(), all["rounds"][0].clone())
    };
    let (stderr, round) = run(true);
    assert!(stderr.contains("the server does not accept ignore_eos"), "{stderr}");
    assert!(stderr.contains("outputs are shorter than requested: 16 of 512 tokens"), "{stderr}");
    assert_eq!(round["input_lens"], json!([128, 128, 128, 128]), "with the tokens of the template");
    assert_eq!(round["output_lens"], json!([4, 4, 4, 4]));
    assert!(round["ttfts"].as_array().unwrap().iter().all(|ttft| ttft.as_f64().unwrap() >= 0.02), "{round}");
    assert_eq!(round["itls"][0].as_array().unwrap().len(), 3);

    let (stderr, round) = run(false);
    assert!(stderr.contains("the server does not report usage: every event counts as one token"), "{stderr}");
    assert_eq!((&round["total_input_tokens"], &round["output_lens"]), (&json!(0), &json!([4, 4, 4, 4])));
}
