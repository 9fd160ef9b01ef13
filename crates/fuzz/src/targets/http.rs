//! Bodies over HTTP: the first line of an input is the route, the rest is the body.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tern::{Model, ModelParts, PartialSampling, Sampling};
use tern_engine::{Capacity, Engine, Limits, Pooling, ScriptedRunner};
use tern_server::{Config, DefaultAdapters, ServedModel, Server};
use tern_text::ChatTemplate;

use super::Run;

const ROUTES: &[&str] =
    &["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"];
const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}\
    <tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}<answer>";
const LIMITS: Limits = Limits { max_seqs: 8, max_context: 256, max_waiting: 256, step_millis: 0 };
const CAPACITY: Capacity =
    Capacity { pages: 256, page_len: 8, max_tokens: 256, max_outputs: 8, window: None, state: None };

/// A server on a port of this machine, with a scripted model.
pub(crate) fn start() -> Run {
    let address = serve().unwrap_or_else(|words| panic!("the server did not start: {words}"));
    Box::new(move |input| {
        let line = input.iter().position(|b| *b == b'\n');
        let (route, body) = line.map_or((&[][..], input), |at| (&input[..at], &input[at + 1..]));
        let route = ROUTES.iter().find(|r| r.as_bytes() == route).unwrap_or(&ROUTES[0]);
        let status = post(address, route, body).unwrap_or_else(|e| panic!("no answer: {e}"));
        assert!(status < 500, "status {status}");
    })
}

fn serve() -> Result<SocketAddr, String> {
    let words = |e: &dyn std::fmt::Display| e.to_string();
    let tokenizer = Arc::new(super::stories());
    let runner = ScriptedRunner::new(tokenizer.vocab_size(), CAPACITY);
    let handle = Engine::start(Box::new(runner), LIMITS).map_err(|e| words(&e))?;
    let template = ChatTemplate::new(TEMPLATE, "", "").map_err(|e| words(&e))?;
    let server = Server::new(Config::default());
    server.loader().ready(ServedModel {
        names: vec!["scripted".into()],
        created: 1_700_000_000,
        digest: String::new(),
        model: Model::from_parts(ModelParts {
            name: "scripted".into(),
            handle,
            tokenizer,
            template: Some(template),
            pooling: Pooling::Mean,
            reranker: None,
            recommended: PartialSampling::default(),
            adapters: vec![],
            images: None,
        }),
        defaults: PartialSampling::USUAL.over(Sampling::default()),
        default_adapters: DefaultAdapters::default(),
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|e| words(&e))?;
    listener.set_nonblocking(true).map_err(|e| words(&e))?;
    let address = listener.local_addr().map_err(|e| words(&e))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| words(&e))?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(|e| words(&e))?;
            server.serve(listener, std::future::pending()).await.map_err(|e| words(&e))
        })
    });
    Ok(address)
}

/// The status of the answer, which is read to its end.
fn post(address: SocketAddr, route: &str, body: &[u8]) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!(
        "POST {route} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = vec![];
    stream.read_to_end(&mut answer)?;
    let status = answer.get(9..12).and_then(|s| std::str::from_utf8(s).ok()?.parse().ok());
    status.ok_or_else(|| std::io::Error::other(format!("{:?}", String::from_utf8_lossy(&answer))))
}
