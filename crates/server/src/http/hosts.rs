//! Allowed host names: requests of a page whose name resolves to this machine (DNS rebinding) are refused.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Config;
use crate::http::error::ApiError;

/// The names allowed in `Host`.
pub(crate) struct Hosts {
    /// `None` allows every name.
    names: Option<Vec<String>>,
}

impl Hosts {
    /// The rule for a server that listens on `address`.
    pub(crate) fn new(config: &Config, address: Option<IpAddr>) -> Hosts {
        let loopback = address.is_none_or(|address| address.to_canonical().is_loopback());
        // with a key such a page is harmless: a browser sends a password only to the name it was entered for
        let open = !loopback && !config.api_keys.is_empty();
        let any = open || config.allowed_hosts.iter().any(|name| name == "*");
        Hosts { names: (!any).then(|| config.allowed_hosts.clone()) }
    }

    fn allow(&self, host: &HeaderValue) -> bool {
        let Some(names) = &self.names else { return true };
        let Some(name) = host.to_str().ok().and_then(name) else { return false };
        // an address in `Host` means that no name was resolved
        is_address(name)
            || name.eq_ignore_ascii_case("localhost")
            || names.iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
    }
}

/// The host of an authority, without port and without the trailing dot of an absolute name.
fn name(host: &str) -> Option<&str> {
    let end = match host.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, port) = host.split_at(end);
    let port = port.strip_prefix(':').unwrap_or(port);
    port.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.strip_suffix('.').unwrap_or(name))
}

fn is_address(name: &str) -> bool {
    match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<std::net::Ipv4Addr>().is_ok(),
    }
}

/// Refuses requests for other names. `/health` reveals nothing and is allowed for every name.
pub(crate) async fn layer(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let mut given = request.headers().get_all(header::HOST).iter();
    // browsers always send the header
    if request.uri().path() == "/health" || given.all(|host| hosts.allow(host)) {
        return next.run(request).await;
    }
    let message = "host name not allowed: use localhost or an IP address, or add the name to the server's \
                   allowed hosts";
    ApiError::new(StatusCode::FORBIDDEN, message).code("host_not_allowed").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(config: &Config, address: &str, host: &str) -> bool {
        Hosts::new(config, address.parse().ok()).allow(&HeaderValue::from_str(host).unwrap())
    }

    #[test]
    fn names_are_allowed_and_addresses_always_are() {
        let config = Config { allowed_hosts: vec!["chat.example.com".into()], ..Config::default() };
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.:1",
            "127.0.0.1",
            "127.0.0.1:8080",
            "192.168.1.5:80",
            "[::1]",
            "[::1]:8080",
            "Chat.Example.com:443",
        ] {
            assert!(allows(&config, "127.0.0.1", good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "evil.localhost",
            "127.0.0.1.evil.example",
            "127.0.0.1:x",
            "[::1",
            "[::1]evil.example",
            "[evil]",
            "",
            "é",
        ] {
            assert!(!allows(&config, "127.0.0.1", bad), "{bad}");
            assert!(!allows(&config, "::1", bad), "{bad}");
        }
    }

    #[test]
    fn beyond_loopback_a_key_is_sufficient() {
        let key = Config { api_keys: vec!["k".into()], ..Config::default() };
        assert!(allows(&key, "0.0.0.0", "gpu.example"));
        assert!(!allows(&key, "127.0.0.1", "gpu.example"));
        assert!(!allows(&key, "::ffff:127.0.0.1", "gpu.example"));
        assert!(!allows(&Config::default(), "0.0.0.0", "gpu.example"));
        let any = Config { allowed_hosts: vec!["*".into()], ..Config::default() };
        assert!(allows(&any, "127.0.0.1", "gpu.example"));
    }
}
