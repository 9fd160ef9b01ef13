//! API keys, compared in constant time.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::http::error::ApiError;

/// Anthropic's header.
const X_API_KEY: &str = "x-api-key";

/// The accepted keys, as hashes so that every comparison has the same length.
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Keys {
        Keys(keys.iter().map(|key| hash(key.as_bytes())).collect())
    }

    /// Whether the headers contain a key: as a bearer token, as the password of any user, or in `x-api-key`.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let given = match headers.get(X_API_KEY) {
            Some(key) => Some(key.as_bytes().to_vec()),
            None => headers.get(header::AUTHORIZATION).and_then(given),
        };
        // an empty key is never accepted
        let Some(given) = given.filter(|given| !given.is_empty()) else { return false };
        let given = hash(&given);
        // all keys are compared, so that the time does not depend on which one matches
        let found = self.0.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(&given));
        found.into()
    }
}

/// A number for the client's key, whether it is accepted or not; 0 without one.
pub(crate) fn client(headers: &HeaderMap) -> u64 {
    let key = headers.get(X_API_KEY).or_else(|| headers.get(header::AUTHORIZATION));
    key.map_or(0, |key| {
        let mut hasher = DefaultHasher::new();
        key.as_bytes().hash(&mut hasher);
        hasher.finish()
    })
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// The key in an `Authorization` header. Browsers use Basic, which lets them prompt for the key of the chat page.
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
            keys.admit(&headers)
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
        assert!(!keys.admit(&HeaderMap::new()));
        for (key, admitted) in [("first", true), ("firs", false), ("", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(X_API_KEY, HeaderValue::from_static(key));
            assert_eq!(keys.admit(&headers), admitted, "{key}");
        }
        assert!(Keys::new(&[]).admit(&HeaderMap::new()));
    }
}
