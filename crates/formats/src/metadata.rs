//! The key-value pairs of a checkpoint, with typed lookups whose errors name the key.

use indexmap::IndexMap;

use crate::shown;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned integer of any width (u8 to u64).
    Uint(u64),
    /// A signed integer of any width (i8 to i64).
    Int(i64),
    /// f32 or f64.
    Float(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Array of strings.
    Strings(Vec<String>),
    /// Array of unsigned integers.
    Uints(Vec<u64>),
    /// Array of signed integers.
    Ints(Vec<i64>),
    /// Array of floats.
    Floats(Vec<f32>),
    /// Array of bools.
    Bools(Vec<bool>),
}

/// Why a lookup failed: the key and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The key is missing.
    #[error("metadata key `{}` is missing", shown(.0))]
    Missing(String),
    /// The value has another type or is invalid.
    #[error("metadata key `{}`: want {want}, file has {found}", shown(key))]
    Wrong {
        /// The key.
        key: String,
        /// The requested type.
        want: &'static str,
        /// A summary of what the file has.
        found: String,
    },
}

/// All key-value pairs, in file order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    pairs: IndexMap<String, Value>,
}

type Lookup<T> = Result<T, MetadataError>;

impl Metadata {
    /// Inserts a pair and returns the previous value.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.pairs.insert(key.into(), value)
    }

    /// Removes a pair; the others keep their order.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.pairs.shift_remove(key)
    }

    /// The value, if the key exists.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.pairs.get(key)
    }

    /// All pairs in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// A count or size. Signed values are accepted if they are not negative.
    pub fn usize(&self, key: &str) -> Lookup<usize> {
        self.optional_usize(key)?.ok_or_else(|| missing(key))
    }

    /// Like [`Self::usize`], `None` if the key is missing.
    pub fn optional_usize(&self, key: &str) -> Lookup<Option<usize>> {
        self.typed(key, "a whole number", as_usize)
    }

    /// A float (integers are accepted).
    pub fn f32(&self, key: &str) -> Lookup<f32> {
        self.optional_f32(key)?.ok_or_else(|| missing(key))
    }

    /// Like [`Self::f32`], `None` if the key is missing.
    pub fn optional_f32(&self, key: &str) -> Lookup<Option<f32>> {
        self.typed(key, "a number", |v| match v {
            Value::Float(x) => Some(*x as f32),
            Value::Uint(x) => Some(*x as f32),
            Value::Int(x) => Some(*x as f32),
            _ => None,
        })
    }

    /// A bool, `None` if the key is missing.
    pub fn optional_bool(&self, key: &str) -> Lookup<Option<bool>> {
        self.typed(key, "a bool", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Lookup<&str> {
        self.optional_str(key)?.ok_or_else(|| missing(key))
    }

    /// Like [`Self::str`], `None` if the key is missing.
    pub fn optional_str(&self, key: &str) -> Lookup<Option<&str>> {
        self.typed(key, "a string", |v| match v {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Lookup<&[String]> {
        self.optional_strings(key)?.ok_or_else(|| missing(key))
    }

    /// Like [`Self::strings`], `None` if the key is missing.
    pub fn optional_strings(&self, key: &str) -> Lookup<Option<&[String]>> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Strings(s) => Some(s.as_slice()),
            _ => None,
        })
    }

    /// An array of floats, `None` if the key is missing.
    pub fn optional_floats(&self, key: &str) -> Lookup<Option<&[f32]>> {
        self.typed(key, "an array of floats", |v| match v {
            Value::Floats(x) => Some(x.as_slice()),
            _ => None,
        })
    }

    /// An array of bools, `None` if the key is missing.
    pub fn optional_bools(&self, key: &str) -> Lookup<Option<&[bool]>> {
        self.typed(key, "an array of bools", |v| match v {
            Value::Bools(x) => Some(x.as_slice()),
            _ => None,
        })
    }

    /// An array of whole numbers, or one number as an array of one; `None` if the key is missing.
    pub fn optional_usizes(&self, key: &str) -> Lookup<Option<Vec<usize>>> {
        self.typed(key, "whole numbers", |v| match v {
            Value::Uints(xs) => xs.iter().map(|&x| usize::try_from(x).ok()).collect(),
            Value::Ints(xs) => xs.iter().map(|&x| usize::try_from(x).ok()).collect(),
            one => as_usize(one).map(|x| vec![x]),
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Lookup<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| MetadataError::Wrong {
            key: key.into(),
            want,
            found: value.summary(),
        })
    }
}

fn missing(key: &str) -> MetadataError {
    MetadataError::Missing(key.into())
}

fn as_usize(v: &Value) -> Option<usize> {
    match v {
        Value::Uint(x) => usize::try_from(*x).ok(),
        Value::Int(x) => usize::try_from(*x).ok(),
        _ => None,
    }
}

impl Value {
    /// The value as short text: long strings and arrays are truncated.
    pub fn summary(&self) -> String {
        fn list<T>(what: &str, xs: &[T], one: impl Fn(&T) -> String) -> String {
            let head: Vec<String> = xs.iter().take(4).map(one).collect();
            let more = if xs.len() > 4 { ", ..." } else { "" };
            format!("{} {what} [{}{more}]", xs.len(), head.join(", "))
        }
        match self {
            Value::Uint(x) => x.to_string(),
            Value::Int(x) => x.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Bool(x) => x.to_string(),
            Value::String(s) => quoted(s),
            Value::Strings(xs) => list("strings", xs, |s| quoted(s)),
            Value::Uints(xs) => list("unsigned", xs, |x| x.to_string()),
            Value::Ints(xs) => list("integers", xs, |x| x.to_string()),
            Value::Floats(xs) => list("floats", xs, |x| format!("{x:?}")),
            Value::Bools(xs) => list("bools", xs, |x| x.to_string()),
        }
    }
}

/// A string in quotes, truncated if it is long.
fn quoted(text: &str) -> String {
    if text.chars().nth(60).is_none() {
        return format!("{text:?}");
    }
    let head: String = text.chars().take(57).collect();
    format!("{head:?}... ({} bytes)", text.len())
}
