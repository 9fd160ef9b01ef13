//! HTTP requests and commands; tests replace them by a fake.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Proxy};

use crate::Config;
use crate::min_rate::{MinRate, RateChecked, SLOWEST, TooSlow};

/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of a response on an open connection.
const READ: Duration = Duration::from_secs(30);

/// Interval at which a program, or the lock of another process, is looked at.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Access to the network and to programs.
pub(crate) trait Fetch {
    /// Requests `url`, from byte `from` if the server supports ranges.
    fn get(&self, url: &str, from: u64) -> Result<Reply, FetchError>;
    /// Runs a program in `folder` to its end, or until `stopped` returns true; the error is one line.
    fn run(&self, command: Program<'_>, stopped: &dyn Fn() -> bool) -> Result<(), String>;
}

/// A program, what it is started with, and where.
#[derive(Clone, Copy)]
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) args: &'a [OsString],
    pub(crate) folder: &'a Path,
}

/// A response, whose content is read from `body`.
pub(crate) struct Reply {
    /// The byte of the file at which the body starts.
    pub(crate) from: u64,
    pub(crate) body: Box<dyn Read>,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchError {
    /// Connection, name resolution or TLS failed, or the server did not respond in time.
    Unreachable(String),
    /// The body arrived too slowly.
    Slow(String),
    /// An error status.
    Status(u16),
}

impl FetchError {
    /// Why reading a body failed.
    pub(crate) fn of_body(error: &std::io::Error) -> FetchError {
        match TooSlow::is(error) {
            true => FetchError::Slow(error.to_string()),
            false => FetchError::Unreachable(error.to_string()),
        }
    }
}

/// The real [`Fetch`].
pub(crate) struct Network {
    agent: Result<Agent, String>,
    endpoint: String,
    token: Option<String>,
    /// Minimum rate of a body.
    min_rate: MinRate,
}

impl Network {
    pub(crate) fn new(config: &Config) -> Network {
        let from_file = || std::fs::read_to_string(config.token_file.as_ref()?).ok();
        let token = config.token.clone().or_else(from_file).map(|t| t.trim().to_string());
        let proxy = config.proxy.as_deref().map(Proxy::new).transpose();
        let agent = proxy.map_err(|e| format!("invalid proxy address: {e}")).map(|proxy| {
            Agent::config_builder()
                .proxy(proxy)
                // the system's certificates, which companies extend
                .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
                .timeout_resolve(Some(CONNECT))
                .timeout_connect(Some(CONNECT))
                .timeout_recv_response(Some(READ))
                .timeout_per_read(Some(READ))
                .user_agent(concat!("tern/", env!("CARGO_PKG_VERSION")))
                .build()
                .new_agent()
        });
        let (endpoint, token) = (config.endpoint.clone(), token.filter(|t| !t.is_empty()));
        Network { agent, endpoint, token, min_rate: SLOWEST }
    }
}

impl Fetch for Network {
    fn get(&self, url: &str, from: u64) -> Result<Reply, FetchError> {
        let agent = self.agent.as_ref().map_err(|e| FetchError::Unreachable(e.clone()))?;
        let mut request = agent.get(url);
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        // The hub redirects to another host for the file itself: the token must not be sent there.
        let own = url.strip_prefix(&self.endpoint).is_some_and(|rest| rest.starts_with('/'));
        if let Some(token) = self.token.as_ref().filter(|_| own) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = request.call().map_err(|error| match error {
            ureq::Error::StatusCode(status) => FetchError::Status(status),
            other => FetchError::Unreachable(other.to_string()),
        })?;
        let from = if response.status() == 206 { from } else { 0 };
        let body = RateChecked::new(response.into_body().into_reader(), self.min_rate);
        Ok(Reply { from, body: Box::new(body) })
    }

    fn run(&self, command: Program<'_>, stopped: &dyn Fn() -> bool) -> Result<(), String> {
        let mut program = Command::new(command.name);
        program.args(command.args).current_dir(command.folder).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = program.stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        // read beside the program, which would wait for a full pipe
        let stderr = child.stderr.take();
        let said = thread::spawn(move || {
            let mut said = vec![];
            let _ = stderr.map(|mut pipe| pipe.read_to_end(&mut said));
            said
        });
        let status = loop {
            match child.try_wait().map_err(|e| e.to_string())? {
                Some(status) => break status,
                None if stopped() => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("it was stopped".to_string());
                }
                None => thread::sleep(POLL),
            }
        };
        if status.success() {
            return Ok(());
        }
        let said = said.join().unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
        Err(last.map_or_else(|| status.to_string(), str::to_string))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that sends the next of `answers` to each connection and returns the received requests.
    fn serve(answers: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = thread::spawn(move || {
            let mut seen = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(|l| l.unwrap());
                let head: Vec<String> = lines.take_while(|l| !l.is_empty()).collect();
                stream.write_all(answer.as_bytes()).unwrap();
                seen.push(head.join("\n").to_ascii_lowercase());
            }
            seen
        });
        (address, seen)
    }

    fn network(endpoint: &str) -> Network {
        let mut config = Config::from_env(|n| (n == "HOME").then(|| "/nowhere".to_string())).unwrap();
        config.endpoint = endpoint.to_string();
        config.token = Some("hf_secret".to_string());
        Network::new(&config)
    }

    fn answer(status: &str, headers: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n{body}",
            body.len()
        )
    }

    #[test]
    fn redirects_are_followed_without_the_token() {
        let (other, elsewhere) = serve(vec![answer("206 Partial Content", "", "cdef")]);
        // localhost instead of 127.0.0.1: another host, as with the hub's file store
        let other = other.replace("127.0.0.1", "localhost");
        let (hub, at_hub) = serve(vec![answer("302 Found", &format!("Location: {other}/blob\r\n"), "")]);
        let mut reply = network(&hub).get(&format!("{hub}/o/r/resolve/main/f"), 2).unwrap();
        let mut body = String::new();
        reply.body.read_to_string(&mut body).unwrap();
        assert_eq!((reply.from, body.as_str()), (2, "cdef"));
        let (at_hub, elsewhere) = (at_hub.join().unwrap(), elsewhere.join().unwrap());
        assert!(at_hub[0].contains("authorization: bearer hf_secret"), "{at_hub:?}");
        assert!(at_hub[0].contains("range: bytes=2-") && elsewhere[0].contains("range: bytes=2-"));
        assert!(!elsewhere[0].contains("hf_secret"), "{elsewhere:?}");
    }

    #[test]
    fn a_server_without_ranges_starts_over() {
        let (hub, _seen) = serve(vec![answer("200 OK", "", "abcdef")]);
        assert_eq!(network(&hub).get(&format!("{hub}/f"), 2).unwrap().from, 0);
    }

    #[test]
    fn error_statuses_and_timeouts_are_different_errors() {
        let (hub, _seen) = serve(vec![answer("404 Not Found", "", "")]);
        assert_eq!(network(&hub).get(&format!("{hub}/f"), 0).err(), Some(FetchError::Status(404)));
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url = format!("http://{closed}/f");
        assert!(matches!(network(&url).get(&url, 0).err(), Some(FetchError::Unreachable(_))));
    }

    /// A server that sends a byte every few milliseconds while the client reads.
    #[test]
    fn a_slow_body_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hub = format!("http://{}", listener.local_addr().unwrap());
        let drip = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = BufReader::new(stream.try_clone().unwrap()).lines().map(|l| l.unwrap());
            assert!(head.take_while(|l| !l.is_empty()).count() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").unwrap();
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut network = network(&hub);
        network.min_rate = MinRate { bytes: 100_000, within: Duration::from_millis(300) };
        let mut reply = network.get(&format!("{hub}/f"), 0).unwrap();
        let mut text = vec![];
        let error = FetchError::of_body(&reply.body.read_to_end(&mut text).unwrap_err());
        assert!(
            matches!(&error, FetchError::Slow(why) if why.ends_with("want at least 100000")),
            "{error:?}"
        );
        assert!(!text.is_empty() && text.len() < 100_000);
        drop((reply, network));
        drip.join().unwrap();
    }

    #[test]
    fn the_error_of_a_command_is_its_last_line() {
        let network = network("http://x");
        let folder = Path::new("/");
        let run = |script: &str| {
            network.run(Program { name: "sh", args: &["-c".into(), script.into()], folder }, &|| false)
        };
        assert_eq!(run("true"), Ok(()));
        assert_eq!(
            run("echo first >&2; echo 'ERROR: last' >&2; echo >&2; exit 3"),
            Err("ERROR: last".to_string())
        );
        assert_eq!(run("exit 3"), Err("exit status: 3".to_string()));
        assert!(network.run(Program { name: "no-such-program", args: &[], folder }, &|| false).is_err());
    }

    #[test]
    fn a_command_ends_when_it_is_stopped() {
        let (network, folder) = (network("http://x"), Path::new("/"));
        let sleep = Program { name: "sleep", args: &["600".into()], folder };
        assert_eq!(network.run(sleep, &|| true), Err("it was stopped".to_string()));
    }
}
