//! JSON parsing with a limit on the number of values: a body of 16 MiB can contain five million empty arrays,
//! and a parsed value takes about seventy bytes.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum number of values in a body: members, elements and strings. Arrays of token ids do not count.
pub(crate) const MAX_VALUES: usize = 1 << 17;

/// The number of values that may still be parsed.
pub(crate) struct Values {
    left: Cell<usize>,
    exceeded: Cell<bool>,
}

/// Why parsing failed.
#[derive(Debug)]
pub(crate) enum JsonError {
    Syntax(serde_json::Error),
    /// More than [`MAX_VALUES`].
    TooMany,
}

impl Values {
    pub(crate) fn new() -> Values {
        Values { left: Cell::new(MAX_VALUES), exceeded: Cell::new(false) }
    }

    /// Parses a whole text.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, JsonError> {
        let mut input = serde_json::Deserializer::from_str(text);
        let value = DeserializeSeed::deserialize(self, &mut input);
        value.and_then(|value| input.end().map(|()| value)).map_err(|error| self.error(error))
    }

    /// Converts the parser's error.
    pub(crate) fn error(&self, error: serde_json::Error) -> JsonError {
        if self.exceeded.get() { JsonError::TooMany } else { JsonError::Syntax(error) }
    }

    /// Counts one more value.
    pub(crate) fn count<E: Error>(&self) -> Result<(), E> {
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.exceeded.set(true);
                Err(E::custom("too many values"))
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for &Values {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        self.count()?;
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Values {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            map.insert(name, members.next_value_seed(self)?);
        }
        Ok(map.into())
    }
}

/// A number with the shortest decimal that is this `f32`.
pub(crate) fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().unwrap_or(f64::from(number)).into()
}

/// The size of a value as JSON in bytes, and the nesting depth of its arrays and objects.
pub(crate) fn size_and_depth(value: &Value) -> (usize, usize) {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    let mut count = Count(0);
    let written = serde_json::to_writer(&mut count, value);
    debug_assert!(written.is_ok(), "counting does not fail");
    (count.0, depth(value))
}

/// An integer, also if written as `5.0`.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let float = value.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15)?;
        Some(float as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_equal_those_of_serde_json() {
        for text in [
            "null",
            " [1, -2, 3.5, 1e300, 18446744073709551615, \"\\u00e9\\n\", true, {\"b\": {}, \"a\": [], \"b\": 1}] ",
        ] {
            assert_eq!(Values::new().parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        for text in ["", "[1,]", "1 2", "{\"a\"}", &"[".repeat(200)] {
            let want = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            match Values::new().parse(text).unwrap_err() {
                JsonError::Syntax(error) => assert_eq!(error.to_string(), want),
                JsonError::TooMany => panic!("{text}"),
            }
        }
    }

    #[test]
    fn values_are_counted_across_texts() {
        let values = Values::new();
        let list = |count: usize| format!("[{}0]", "[],".repeat(count - 2)); // itself, and the last
        values.parse(&list(MAX_VALUES - 1)).unwrap();
        values.parse("1").unwrap();
        assert!(matches!(values.parse("1"), Err(JsonError::TooMany)));
        assert!(matches!(Values::new().parse(&list(MAX_VALUES + 1)), Err(JsonError::TooMany)));
    }

    #[test]
    fn size_and_depth_are_those_of_the_text() {
        let value = serde_json::json!({"a": [1, {"b": "é"}], "c": 2});
        assert_eq!(size_and_depth(&value), (value.to_string().len(), 3));
        assert_eq!(size_and_depth(&Value::Null), (4, 0));
    }
}
