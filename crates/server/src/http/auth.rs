//! API keys, compared in constant time.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::http::error::ApiError;

/// Anthropic's header.
const X_API_KEY: &str = "x-api-key";

/// The digest of a key, so that every comparison has the same length.
#[derive(Clone, Copy)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of requests that have none.
    pub(crate) const NONE: Key = Key([0; 32]);

    fn new(key: &[u8]) -> Key {
        Key(Sha256::digest(key).into())
    }

    /// The key that a client sends, whether it is accepted or not: as a bearer token, as the password of any
    /// user, or in `x-api-key`. An empty key is none.
    pub(crate) fn of(headers: &HeaderMap) -> Key {
        let given = match headers.get(X_API_KEY) {
            Some(key) => Some(key.as_bytes().to_vec()),
            None => headers.get(header::AUTHORIZATION).and_then(given),
        };
        given.filter(|given| !given.is_empty()).map_or(Key::NONE, |given| Key::new(&given))
    }

    /// A number for the client, by which the engine shares its work.
    pub(crate) fn number(&self) -> u64 {
        self.0.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The digest in hexadecimal digits: the owner of what is stored on disk.
    pub(crate) fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key of these digits.
    pub(crate) fn from_digits(digits: &str) -> Option<Key> {
        let byte = |at: usize| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok();
        let bytes: Vec<u8> = (0..32).map(byte).collect::<Option<_>>()?;
        Some(Key(bytes.try_into().ok()?))
    }

    /// Whether two keys are the same, in constant time.
    pub(crate) fn is(&self, other: &Key) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

/// The accepted keys.
pub(crate) struct Keys(Vec<Key>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Keys {
        Keys(keys.iter().map(|key| Key::new(key.as_bytes())).collect())
    }

    /// Whether clients need a key.
    pub(crate) fn are_required(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a client with this key may use the server.
    pub(crate) fn admit(&self, given: &Key) -> bool {
        // all keys are compared, so that the time does not depend on which one matches
        let found = self.0.iter().fold(Choice::from(0), |found, key| found | key.is(given));
        !self.are_required() || found.into()
    }
}

/// The key in an `Authorization` header. Browsers use Basic, which lets them prompt for
/// the key of the chat page.
fn given(header: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, rest) = header.to_str().ok()?.trim().split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = base64::engine::general_purpose::STANDARD.decode(rest).ok()?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// The 401 response, which makes a browser prompt for a password.
pub(crate) fn refusal() -> Response {
    let message = "missing or invalid API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`";
    let error = ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key");
    let mut response = error.into_response();
    for scheme in ["Basic realm=\"tern\", charset=\"UTF-8\"", "Bearer realm=\"tern\""] {
        response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
    }
    // one attempt per connection
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_of_the_keys_is_accepted_as_bearer_or_as_password() {
        let keys = Keys::new(&["first".into(), "se:cond".into()]);
        let admits = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            keys.admit(&Key::of(&headers))
        };
        let basic = |pair: &str| {
            format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair.as_bytes()))
        };
        for good in ["Bearer first", "bearer  se:cond", &basic("anybody:first"), &basic(":se:cond")] {
            assert!(admits(good), "{good}");
        }
        for bad in ["Bearer", "Bearer ", "Bearer firs", "first", "Digest first", "Basic ???", &basic("first")]
        {
            assert!(!admits(bad), "{bad}");
        }
        assert!(!keys.admit(&Key::of(&HeaderMap::new())));
        for (key, admitted) in [("first", true), ("firs", false), ("", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(X_API_KEY, HeaderValue::from_static(key));
            assert_eq!(keys.admit(&Key::of(&headers)), admitted, "{key}");
        }
        assert!(Keys::new(&[]).admit(&Key::NONE));
    }
}
