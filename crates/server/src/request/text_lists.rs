//! Parameters that are texts or token ids, parsed without a JSON value per token.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::http::error::{ApiError, Result, describe};
use crate::request::json::{Values, integer};

/// A text, as a string or as token ids.
#[derive(Debug, PartialEq)]
pub(crate) enum Text {
    String(String),
    Tokens(Vec<u32>),
}

/// The value of a parameter that takes texts.
#[derive(Debug)]
pub(crate) enum Listed {
    String(String),
    Id(u32),
    /// One or more token ids.
    Ids(Vec<u32>),
    List(List),
    /// Any other value, described.
    Other(String),
}

/// An array that does not consist of token ids only.
#[derive(Debug)]
pub(crate) struct List {
    count: usize,
    /// The first element is a token id.
    of_ids: bool,
    /// The first elements after the leading token ids.
    kept: Vec<Listed>,
}

impl Listed {
    /// One or more texts; `check` gets their number and may refuse it.
    pub(crate) fn texts(self, name: &str, check: impl FnOnce(usize) -> Result<()>) -> Result<Vec<Text>> {
        match self {
            Listed::List(list) if list.count == 0 => {
                Err(ApiError::bad(name, format!("{name}: must not be empty")))
            }
            Listed::List(list) if !list.of_ids => {
                check(list.count)?;
                list.kept.into_iter().map(|item| item.text(name)).collect()
            }
            one => Ok(vec![one.text(name)?]),
        }
    }

    /// Token ids.
    pub(crate) fn tokens(self, name: &str) -> Result<Vec<u32>> {
        match self {
            Listed::Ids(ids) => Ok(ids),
            Listed::List(list) => match list.kept.first() {
                None => Ok(vec![]),
                Some(other) => Err(ApiError::mismatch(name, "token ids", &other.description())),
            },
            other => Err(ApiError::mismatch(name, "an array of token ids", &other.description())),
        }
    }

    /// `null` counts as absent.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Listed::Other(description) if description == "null")
    }

    fn text(self, name: &str) -> Result<Text> {
        match self {
            Listed::String(text) => Ok(Text::String(text)),
            list @ (Listed::Ids(_) | Listed::List(_)) => list.tokens(name).map(Text::Tokens),
            other => {
                let expected = "a string, token ids, or an array of strings or of token id arrays";
                Err(ApiError::mismatch(name, expected, &other.description()))
            }
        }
    }

    fn description(&self) -> String {
        match self {
            Listed::String(text) => describe(&text.as_str().into()),
            Listed::Id(id) => id.to_string(),
            Listed::Ids(ids) => format!("an array of {}", ids.len()),
            Listed::List(list) => format!("an array of {}", list.count),
            Listed::Other(description) => description.clone(),
        }
    }
}

/// Parses a [`Listed`]. Keeps `keep` elements of the array, and one of a nested array for the error message.
#[derive(Clone, Copy)]
pub(crate) struct Lister<'a> {
    pub(crate) keep: usize,
    pub(crate) values: &'a Values,
}

impl<'de> DeserializeSeed<'de> for Lister<'_> {
    type Value = Listed;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> std::result::Result<Listed, D::Error> {
        input.deserialize_any(self)
    }
}

impl Lister<'_> {
    fn number(value: &Value) -> Listed {
        let id = integer(value).and_then(|id| u32::try_from(id).ok());
        id.map_or_else(|| Listed::Other(value.to_string()), Listed::Id)
    }
}

impl<'de> Visitor<'de> for Lister<'_> {
    type Value = Listed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Listed, E> {
        Ok(Listed::Other("null".into()))
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Listed, E> {
        Ok(Listed::Other(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Listed, E> {
        Ok(u32::try_from(value).map_or_else(|_| Listed::Other(value.to_string()), Listed::Id))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Listed, E> {
        Ok(Lister::number(&value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Listed, E> {
        Ok(Lister::number(&value.into()))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Listed, E> {
        Ok(Listed::String(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Listed, A::Error> {
        let (mut ids, mut list) = (Vec::new(), List { count: 0, of_ids: false, kept: Vec::new() });
        while let Some(item) = items.next_element_seed(Lister { keep: 1, ..self })? {
            match item {
                Listed::Id(id) if ids.len() == list.count => ids.push(id),
                item if list.kept.len() < self.keep.max(1) => list.kept.push(item),
                _ => {}
            }
            list.count += 1;
        }
        list.of_ids = !ids.is_empty();
        Ok(if list.of_ids && list.kept.is_empty() { Listed::Ids(ids) } else { Listed::List(list) })
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> std::result::Result<Listed, A::Error> {
        Ok(Listed::Other(describe(&self.values.visit_map(members)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Listed {
        let values = Values::new();
        let mut input = serde_json::Deserializer::from_str(text);
        Lister { keep: 3, values: &values }.deserialize(&mut input).unwrap()
    }

    fn texts(text: &str) -> std::result::Result<Vec<Text>, String> {
        let check = |count| match count {
            0..=3 => Ok(()),
            _ => Err(ApiError::bad("p", format!("{count} are too many"))),
        };
        read(text).texts("p", check).map_err(|error| error.message)
    }

    #[test]
    fn texts_come_as_strings_or_tokens() {
        let string = |text: &str| Text::String(text.into());
        assert_eq!(texts("\"a\"").unwrap(), [string("a")]);
        assert_eq!(texts("[\"a\", \"b\"]").unwrap(), [string("a"), string("b")]);
        assert_eq!(texts("[1, 2.0, 3]").unwrap(), [Text::Tokens(vec![1, 2, 3])]);
        assert_eq!(
            texts("[[1], [], \"a\"]").unwrap(),
            [Text::Tokens(vec![1]), Text::Tokens(vec![]), string("a")]
        );
        assert!(read("[]").tokens("p").unwrap().is_empty());
    }

    #[test]
    fn anything_else_is_refused_with_a_description() {
        let expected = "p: expected a string, token ids, or an array of strings or of token id arrays, got";
        for (text, error) in [
            ("[]", "p: must not be empty".to_owned()),
            ("[\"a\", \"a\", \"a\", \"a\"]", "4 are too many".into()),
            ("5", format!("{expected} 5")),
            ("{\"a\": 1}", format!("{expected} an object")),
            ("[\"a\", 1]", format!("{expected} 1")),
            ("[null]", format!("{expected} null")),
            ("[1, \"a\"]", "p: expected token ids, got \"a\"".into()),
            ("[1, -1]", "p: expected token ids, got -1".into()),
            ("[1, [2, 3]]", "p: expected token ids, got an array of 2".into()),
            ("[[1, 1.5]]", "p: expected token ids, got 1.5".into()),
            ("[[[], []]]", "p: expected token ids, got an array of 0".into()),
        ] {
            assert_eq!(texts(text).unwrap_err(), error, "{text}");
        }
        assert_eq!(
            read("\"a\"").tokens("p").unwrap_err().message,
            "p: expected an array of token ids, got \"a\""
        );
        assert_eq!(read("[true]").tokens("p").unwrap_err().message, "p: expected token ids, got true");
    }
}
