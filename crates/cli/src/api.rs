//! Requests to a running server.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

use crate::error::{CliError, CliResult};

/// Maximum size of a response.
const MAX_BYTES: u64 = 8 << 20;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A server and the key for it.
pub(crate) struct Server<'a> {
    pub(crate) url: &'a str,
    key: Option<String>,
}

impl<'a> Server<'a> {
    /// With the key of a flag, or of TERN_API_KEY.
    pub(crate) fn new(url: &'a str, key: Option<&str>) -> Server<'a> {
        Server { url, key: key.map(String::from).or_else(|| std::env::var("TERN_API_KEY").ok()) }
    }

    /// The text of a route.
    pub(crate) fn get(&self, route: &str) -> CliResult<String> {
        let url = format!("{}{route}", self.url);
        text(&url, self.authorized(agent().get(&url)).call())
    }

    /// The text of the reply to a JSON body.
    pub(crate) fn post(&self, route: &str, body: &Value) -> CliResult<String> {
        let url = format!("{}{route}", self.url);
        let request = agent().post(&url).header("content-type", "application/json");
        text(&url, self.authorized(request).send(body.to_string()))
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }
}

fn agent() -> Agent {
    // the body of an error says what is wrong
    Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build().into()
}

fn text(url: &str, response: Result<Response<Body>, ureq::Error>) -> CliResult<String> {
    let failed = |e: ureq::Error| match e {
        ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => CliError::message(format!(
            "{url}: no server listens there; start one with `tern serve`, or name its address"
        )),
        e => CliError::message(format!("{url}: {e}")),
    };
    let mut response = response.map_err(failed)?;
    let body = response.body_mut().with_config().limit(MAX_BYTES).read_to_string().map_err(failed)?;
    if response.status().is_success() {
        return Ok(body);
    }
    let json: Value = serde_json::from_str(&body).unwrap_or_default();
    let why = [&json["error"]["message"], &json["error"]].into_iter().find_map(Value::as_str);
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    Err(CliError::message(format!("{url}: status {}{why}", response.status().as_u16())))
}
