//! The parameters of a request, taken one at a time from its JSON object; unknown ones are refused by name.

use std::fmt;

use axum::http::StatusCode;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::config::UnknownParameters;
use crate::http::error::{ApiError, Result};
use crate::request::ignored::Object;
use crate::request::json::{JsonError, MAX_VALUES, Values, integer};
use crate::request::named_images::NamedImages;
use crate::request::text_lists::{Listed, Lister};

/// An object whose members must each be taken, ignored or refused. `null` counts as absent.
pub(crate) struct Params {
    map: Map<String, Value>,
    /// The member with texts or token ids.
    listed: Option<Listed>,
    /// The path of the object in the request: empty or `tools[0].`
    path: String,
    /// What happens to members that are not taken.
    unknown: UnknownParameters,
    /// Members that were renamed, and what the request calls them.
    renamed: Vec<Renamed>,
    /// What the request's URLs of images are replaced by.
    images: NamedImages,
}

/// A member that another API has under another name.
#[derive(Clone, Copy)]
struct Renamed {
    from: &'static str,
    to: &'static str,
}

/// Members of a body that are not parsed to JSON values.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unparsed {
    /// Names of members that are skipped.
    pub(crate) ignored: &'static [&'static str],
    /// Names in `ignored` that are not skipped after all.
    pub(crate) kept: &'static [&'static str],
    /// Names of the member that is taken with [`Params::listed`].
    pub(crate) listed: &'static [&'static str],
    /// Maximum number of texts kept of `listed`.
    pub(crate) keep: usize,
    /// What happens to members that are not taken, in the body and in all objects within it.
    pub(crate) unknown: UnknownParameters,
}

/// The member whose members are parameters of the body.
const EXTRA: &str = "extra_body";

/// Why a body is no JSON.
pub(crate) fn body_error(error: JsonError) -> ApiError {
    let message = match error {
        JsonError::TooMany => format!("the request body has more than {MAX_VALUES} JSON values"),
        JsonError::Syntax(error) => format!("the request body is not valid JSON: {error}"),
    };
    ApiError::new(StatusCode::BAD_REQUEST, message)
}

impl Params {
    /// Parses a body.
    pub(crate) fn parse(body: &[u8], unparsed: Unparsed) -> Result<Params> {
        let values = Values::new();
        let mut input = serde_json::Deserializer::from_slice(body);
        let object = input.deserialize_map(Body { unparsed, values: &values });
        let object = object.and_then(|object| input.end().map(|()| object));
        object.map_err(|error| match values.error(error) {
            JsonError::Syntax(error) if error.is_data() => {
                ApiError::new(StatusCode::BAD_REQUEST, "the request body must be a JSON object")
            }
            error => body_error(error),
        })
    }

    /// The same for a request whose images may have URLs.
    pub(crate) fn naming(self, images: &NamedImages) -> Params {
        Params { images: images.clone(), ..self }
    }

    /// The images that the request names by URL.
    pub(crate) fn images(&self) -> &NamedImages {
        &self.images
    }

    /// The member `name` with texts or token ids.
    pub(crate) fn listed(&mut self, name: &str) -> Result<Listed> {
        self.listed.take().ok_or_else(|| self.missing(name))
    }

    /// An object of the same request with the path `path`.
    pub(crate) fn nested(&self, value: Value, path: &str) -> Result<Params> {
        match value {
            Value::Object(map) => {
                let (path, unknown) = (format!("{path}."), self.unknown);
                Ok(Params { map, listed: None, path, unknown, renamed: vec![], images: self.images.clone() })
            }
            other => Err(ApiError::expected(path, "an object", &other)),
        }
    }

    /// Takes the member `from` as `to`; errors use the name `from`.
    pub(crate) fn rename(&mut self, from: &'static str, to: &'static str) {
        self.renamed.push(Renamed { from, to });
        if let Some(value) = self.map.swap_remove(from) {
            self.map.insert(to.to_owned(), value);
        }
    }

    /// Adds a member, unless the object has it.
    pub(crate) fn add(&mut self, name: &str, value: Value) {
        self.map.entry(name).or_insert(value);
    }

    /// A member that is not taken.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The full path of a member, as the request has it.
    pub(crate) fn name(&self, name: &str) -> String {
        let renamed = self.renamed.iter().find(|renamed| renamed.to == name);
        format!("{}{}", self.path, renamed.map_or(name, |renamed| renamed.from))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.swap_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(ApiError::expected(&self.name(name), "true or false", &other)),
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(ApiError::expected(&self.name(name), "a string", &other)),
        }
    }

    /// A required string.
    pub(crate) fn required_string(&mut self, name: &str) -> Result<String> {
        let missing = self.missing(name);
        self.string(name)?.ok_or(missing)
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(ApiError::expected(&self.name(name), "an array", &other)),
        }
    }

    /// A nested object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Params>> {
        let path = self.name(name);
        self.take(name).map(|value| self.nested(value, &path)).transpose()
    }

    pub(crate) fn number(&mut self, name: &str, low: f64, high: f64) -> Result<Option<f32>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if (low..=high).contains(&number) => Ok(Some(number as f32)),
            _ => Err(ApiError::expected(&self.name(name), format!("a number from {low} to {high}"), &value)),
        }
    }

    pub(crate) fn integer(&mut self, name: &str, low: i64, high: i64) -> Result<Option<i64>> {
        let value = self.take(name);
        self.check_integer(name, value, low, high)
    }

    /// As [`Params::integer`], for a member that was taken.
    pub(crate) fn check_integer(
        &self,
        name: &str,
        value: Option<Value>,
        low: i64,
        high: i64,
    ) -> Result<Option<i64>> {
        let Some(value) = value else { return Ok(None) };
        match integer(&value) {
            Some(number) if (low..=high).contains(&number) => Ok(Some(number)),
            _ if high == i64::MAX && low == i64::MIN => {
                Err(ApiError::expected(&self.name(name), "an integer", &value))
            }
            _ if high == i64::MAX => {
                Err(ApiError::expected(&self.name(name), format!("an integer of {low} or more"), &value))
            }
            _ => {
                Err(ApiError::expected(&self.name(name), format!("an integer from {low} to {high}"), &value))
            }
        }
    }

    pub(crate) fn missing(&self, name: &str) -> ApiError {
        let name = self.name(name);
        let message = format!("missing required parameter: {name:?}");
        ApiError::bad(name, message)
    }

    /// All members, for objects with arbitrary names.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// Refuses members that were not taken, except for those that are ignored in such an object. A member of
    /// `refused` is always refused, with the reason.
    pub(crate) fn finish(mut self, object: Object, refused: &[(&str, &str)]) -> Result<()> {
        let ignored = object.ignored();
        self.map.retain(|name, value| !value.is_null() && !ignored.contains(&name.as_str()));
        for name in self.map.keys() {
            let path = self.name(name);
            if let Some((_, why)) = refused.iter().find(|(known, _)| known == name) {
                return Err(ApiError::bad(path.clone(), format!("{path}: {why}")));
            }
            match self.unknown {
                UnknownParameters::Refuse => {
                    let message = format!("unknown parameter: {path:?}");
                    return Err(ApiError::bad(path, message).code("unknown_parameter"));
                }
                UnknownParameters::Ignore => tracing::warn!(parameter = %path, "unknown parameter ignored"),
            }
        }
        Ok(())
    }
}

/// Parses the members of a body.
struct Body<'a> {
    unparsed: Unparsed,
    values: &'a Values,
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = Params;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<Params, A::Error> {
        let Body { unparsed, values } = self;
        let mut params = Params {
            map: Map::new(),
            listed: None,
            path: String::new(),
            unknown: unparsed.unknown,
            renamed: vec![],
            images: NamedImages::default(),
        };
        while let Some(name) = members.next_key::<String>()? {
            let kept = unparsed.kept.contains(&name.as_str());
            if unparsed.ignored.contains(&name.as_str()) && !kept {
                members.next_value::<IgnoredAny>()?;
            } else if unparsed.listed.contains(&name.as_str()) {
                let listed = members.next_value_seed(Lister { keep: unparsed.keep, values })?;
                params.listed = Some(listed).filter(|listed| !listed.is_null());
            } else {
                params.map.insert(name, members.next_value_seed(values)?);
            }
        }
        // what a client writes that has no such argument: others merge it into the body themselves
        if let Some(Value::Object(extra)) = params.map.get_mut(EXTRA) {
            let extra = std::mem::take(extra);
            params.map.swap_remove(EXTRA);
            params.map.extend(extra);
        }
        Ok(params)
    }
}

/// The result of parsing JSON in a string parameter.
pub(crate) fn parsed(value: std::result::Result<Value, JsonError>, name: &str) -> Result<Value> {
    value.map_err(|error| json_error(error, name))
}

pub(crate) fn json_error(error: JsonError, name: &str) -> ApiError {
    match error {
        JsonError::TooMany => ApiError::bad(name, format!("{name}: more than {MAX_VALUES} JSON values")),
        JsonError::Syntax(error) => ApiError::bad(name, format!("{name}: not valid JSON: {error}")),
    }
}

/// Token ids.
pub(crate) fn tokens(items: &[Value], name: &str) -> Result<Vec<u32>> {
    let token = |item: &Value| match integer(item).and_then(|id| u32::try_from(id).ok()) {
        Some(id) => Ok(id),
        None => Err(ApiError::expected(name, "token ids", item)),
    };
    items.iter().map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn params(value: Value) -> Params {
        Params::parse(value.to_string().as_bytes(), Unparsed::default()).unwrap()
    }

    #[test]
    fn values_are_taken_by_type_and_refused_with_what_was_expected() {
        let mut p = params(json!({"a": 2.0, "b": null, "c": "x", "d": [1], "e": {"f": true}}));
        assert_eq!(p.integer("a", 0, 5).unwrap(), Some(2));
        assert_eq!(p.integer("b", 0, 5).unwrap(), None);
        assert_eq!(
            p.number("c", 0.0, 2.0).unwrap_err().message,
            "c: expected a number from 0 to 2, got \"x\""
        );
        assert_eq!(p.bool("d").unwrap_err().message, "d: expected true or false, got an array of 1");
        let mut e = p.object("e").unwrap().unwrap();
        assert_eq!(e.string("f").unwrap_err().message, "e.f: expected a string, got true");
        assert_eq!(e.required_string("g").unwrap_err().message, "missing required parameter: \"e.g\"");
        p.finish(Object::Body, &[]).unwrap();
    }

    #[test]
    fn remaining_members_are_ignored_or_refused_by_name() {
        let left = || params(json!({"user": "me", "none": null, "foo": 1}));
        let error = left().finish(Object::Body, &[]).unwrap_err();
        assert_eq!(
            (error.message.as_str(), error.param.as_deref()),
            ("unknown parameter: \"foo\"", Some("foo"))
        );
        let refused = &[("foo", "is not supported")];
        assert_eq!(left().finish(Object::Body, refused).unwrap_err().message, "foo: is not supported");
        let ignoring = || Params { unknown: UnknownParameters::Ignore, ..left() };
        ignoring().finish(Object::Body, &[]).unwrap();
        assert!(ignoring().finish(Object::Body, refused).is_err());
    }

    #[test]
    fn a_body_that_is_not_an_object_is_refused_with_line_and_column() {
        let message = |body: &[u8]| Params::parse(body, Unparsed::default()).err().unwrap().message;
        assert_eq!(message(b"[]"), "the request body must be a JSON object");
        assert!(message(b"{\"a\":\n x}").ends_with("at line 2 column 2"));
    }
}
