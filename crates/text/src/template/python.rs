//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::generator::Generator;
use super::meter::{Meter, is_data};

/// `str(value)`, for output, `~`, `|string` and `|join`.
pub(super) fn str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_string(),
        None if value.is_undefined() => String::new(),
        None => repr(value),
    }
}

/// `repr(value)`: strings in quotes, lists in brackets.
fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(&mut out, value);
    out
}

fn write_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number => match float(value) {
            Some(number) => out.push_str(&float_repr(number)),
            None => write!(out, "{value}").unwrap_or_default(),
        },
        ValueKind::Map if is_data(value) => {
            out.push('{');
            for (i, (key, item)) in pairs(value).into_iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &item);
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let items = items(value);
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_repr(out, item);
            }
            out.push_str(if tuple && items.len() == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        // strings: the engine's own debug form is Python's repr
        ValueKind::String => write!(out, "{value:?}").unwrap_or_default(),
        _ => write!(out, "{value}").unwrap_or_default(),
    }
}

/// A number that is a float in Python's sense.
fn float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer())
        .then(|| f64::try_from(value.clone()).ok())
        .flatten()
}

/// Python's shortest float: `1.0`, `0.0001`, `1e-05`, `1e+16`, `nan`.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}"); // d.ddde-5
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let text = format!("{number}");
        if text.contains('.') { text } else { text + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

/// How `json.dumps` is asked to write.
#[derive(Debug, Default)]
pub(super) struct Dumps {
    pub(super) ensure_ascii: bool,
    pub(super) indent: Option<String>,
    pub(super) separators: Option<(String, String)>,
    pub(super) sort_keys: bool,
}

impl Dumps {
    /// `json.dumps(value)`.
    pub(super) fn dump(&self, value: &Value, meter: &Meter) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0, meter)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, level: usize, meter: &Meter) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match float(value) {
                Some(number) if number.is_nan() => out.push_str("NaN"),
                Some(number) if number.is_infinite() => {
                    out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
                }
                Some(number) => out.push_str(&float_repr(number)),
                None => write!(out, "{value}").unwrap_or_default(),
            },
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                self.write_items(out, '[', items(value), (level, meter), |out, item| {
                    self.write(out, &item, level + 1, meter)
                })?;
                out.push(']');
            }
            ValueKind::Map if is_data(value) => {
                let mut pairs = pairs(value);
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_items(out, '{', pairs, (level, meter), |out, (key, item)| {
                    match key.as_str() {
                        Some(key) => self.write_string(out, key),
                        None => {
                            // numbers, booleans and None become strings, as in Python
                            out.push('"');
                            self.write(out, &key, level + 1, meter)?;
                            out.push('"');
                        }
                    }
                    out.push_str(self.separators.as_ref().map_or(": ", |s| &s.1));
                    self.write(out, &item, level + 1, meter)
                })?;
                out.push('}');
            }
            kind => {
                let kind = if Generator::is(value) { "generator".into() } else { kind.to_string() };
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("object of type {kind} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    /// Opens a container and writes its items with separators, newlines and indents.
    fn write_items<T>(
        &self,
        out: &mut String,
        open: char,
        items: Vec<T>,
        (level, meter): (usize, &Meter),
        mut one: impl FnMut(&mut String, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let empty = items.is_empty();
        let between = match &self.separators {
            Some((item, _)) => item,
            None if self.indent.is_some() => ",",
            None => ", ",
        };
        // separators and indents are the template's choice and can be long
        let indent = self.indent.as_ref().map_or(0, String::len);
        let each = between.len() + self.separators.as_ref().map_or(2, |s| s.1.len()) + indent * (level + 1);
        for (i, item) in items.into_iter().enumerate() {
            meter.charge(each)?;
            out.push_str(if i == 0 { "" } else { between });
            self.newline(out, level + 1);
            one(out, item)?;
        }
        if !empty {
            self.newline(out, level);
        }
        Ok(())
    }

    fn newline(&self, out: &mut String, level: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}").unwrap_or_default();
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// The elements of a list, tuple or other iterable.
pub(super) fn items(value: &Value) -> Vec<Value> {
    value.try_iter().map(Iterator::collect).unwrap_or_default()
}

/// The pairs of a dictionary, in its order.
pub(super) fn pairs(value: &Value) -> Vec<(Value, Value)> {
    value.as_object().and_then(|object| object.try_iter_pairs()).map(Iterator::collect).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_python_s() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e300, "1.5e+300"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn reprs_are_python_s() {
        let value =
            Value::from(minijinja::value::Serde(serde_json::json!({"a": [1, 2.0, null, true], "b": "it's"})));
        assert_eq!(str(&value), r#"{'a': [1, 2.0, None, True], 'b': "it's"}"#);
    }
}
