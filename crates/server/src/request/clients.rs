//! Who sent a request, as a number: the engine shares its work between clients.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use crate::request::params::Params;

/// The parameters that may name a user: the older and the newer one of OpenAI, and that of other servers.
pub(crate) const NAMES: &[&str] = &["user", "safety_identifier", "user_id"];

/// The same of Anthropic, in which it is the member `user_id`.
pub(crate) const ANTHROPIC_NAMES: &[&str] = &["metadata"];

/// The user that a request names.
pub(crate) fn name(params: &mut Params) -> Option<String> {
    let name = |name: &&str| match params.take(name)? {
        Value::String(name) => Some(name),
        object => object.get("user_id")?.as_str().map(str::to_owned),
    };
    NAMES.iter().chain(ANTHROPIC_NAMES).find_map(name)
}

/// The user that a request names; 0 without one.
pub(crate) fn user(name: Option<&str>) -> u64 {
    name.map_or(0, |name| hash(&name))
}

/// The client: an API key, as a hash, and the user that its request names.
pub(crate) fn client(key: u64, user: u64) -> u64 {
    hash(&(key, user))
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_counts() {
        for (body, want) in [
            (r#"{"user": "a", "safety_identifier": "b"}"#, Some("a")),
            (r#"{"user": null, "safety_identifier": "b"}"#, Some("b")),
            (r#"{"metadata": {"user_id": "c", "x": 1}}"#, Some("c")),
            (r#"{"user_id": "d"}"#, Some("d")),
            (r#"{"metadata": {"x": 1}, "user": 7}"#, None),
            ("{}", None),
        ] {
            let mut params =
                Params::parse(body.as_bytes(), crate::request::params::Unparsed::default()).unwrap();
            assert_eq!(name(&mut params).as_deref(), want, "{body}");
        }
    }

    #[test]
    fn a_client_is_a_key_and_a_user() {
        let numbers = [(1, None), (1, Some("a")), (1, Some("b")), (2, None), (2, Some("a")), (0, Some(""))]
            .map(|(key, name)| client(key, user(name)));
        assert!(numbers.iter().enumerate().all(|(at, number)| !numbers[..at].contains(number)));
        assert_eq!(client(1, user(Some("a"))), numbers[1]);
    }
}
