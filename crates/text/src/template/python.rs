//! Values in Python's notation: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::generator::Generator;
use super::meter::is_data;
use super::run::Run;
use super::traced::{Piece, Traced};

/// Writes `str(value)`, for output, `~`, `|string` and `|join`.
pub(super) fn write(run: &Run, out: &mut Traced, value: &Value) -> Result<(), Error> {
    match run.origins.piece(value) {
        Some(piece) => {
            run.meter.visit(value, 0)?;
            out.push(&piece);
            Ok(())
        }
        None if value.is_undefined() => Ok(()),
        None => write_repr(run, out, value, 0),
    }
}

/// Writes `repr(value)`: strings in quotes, lists in brackets.
fn write_repr(run: &Run, out: &mut Traced, value: &Value, level: usize) -> Result<(), Error> {
    run.meter.visit(value, level)?;
    match value.kind() {
        ValueKind::Undefined => out.own("Undefined"),
        ValueKind::Number => match float(value) {
            Some(number) => out.own(&float_repr(number)),
            None => out.own(&value.to_string()),
        },
        ValueKind::Map if is_data(value) => {
            out.own("{");
            for (i, (key, item)) in pairs(value).into_iter().enumerate() {
                out.own(if i == 0 { "" } else { ", " });
                write_repr(run, out, &key, level + 1)?;
                out.own(": ");
                write_repr(run, out, &item, level + 1)?;
            }
            out.own("}");
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.own(if tuple { "(" } else { "[" });
            let items = items(value);
            for (i, item) in items.iter().enumerate() {
                out.own(if i == 0 { "" } else { ", " });
                write_repr(run, out, item, level + 1)?;
            }
            out.own(if tuple && items.len() == 1 { "," } else { "" });
            out.own(if tuple { ")" } else { "]" });
        }
        // strings: the engine's debug format is Python's repr; escapes lose the origins
        ValueKind::String => {
            out.with(run.origins.is_users(value), |out| write!(out, "{value:?}").unwrap_or_default());
        }
        _ => out.own(&value.to_string()),
    }
    Ok(())
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

/// The options of `json.dumps`.
#[derive(Debug, Default)]
pub(super) struct Dumps {
    pub(super) ensure_ascii: bool,
    pub(super) indent: Option<String>,
    pub(super) separators: Option<(String, String)>,
    pub(super) sort_keys: bool,
}

impl Dumps {
    /// `json.dumps(value)`.
    pub(super) fn dump(&self, run: &Run, value: &Value) -> Result<Traced, Error> {
        let mut out = Traced::default();
        self.write(run, &mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, run: &Run, out: &mut Traced, value: &Value, level: usize) -> Result<(), Error> {
        run.meter.visit(value, level)?;
        match value.kind() {
            ValueKind::None => out.own("null"),
            ValueKind::Bool => out.own(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match float(value) {
                Some(number) if number.is_nan() => out.own("NaN"),
                Some(number) if number.is_infinite() => {
                    out.own(if number > 0.0 { "Infinity" } else { "-Infinity" });
                }
                Some(number) => out.own(&float_repr(number)),
                None => out.own(&value.to_string()),
            },
            ValueKind::String => self.write_string(run, out, value),
            ValueKind::Seq => {
                self.write_items(run, (out, level), "[", items(value), |out, item| {
                    self.write(run, out, &item, level + 1)
                })?;
                out.own("]");
            }
            ValueKind::Map if is_data(value) => {
                let mut pairs = pairs(value);
                if self.sort_keys {
                    let rounds = pairs.len().checked_ilog2().unwrap_or(0) as usize + 1;
                    for (key, _) in &pairs {
                        let cost = run.meter.walk(key)?;
                        run.meter.charge_again(cost, rounds)?;
                    }
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_items(run, (out, level), "{", pairs, |out, (key, item)| {
                    match key.as_str() {
                        Some(_) => self.write_string(run, out, &key),
                        None => {
                            // numbers, booleans and None become strings, as in Python
                            out.own("\"");
                            self.write(run, out, &key, level + 1)?;
                            out.own("\"");
                        }
                    }
                    out.own(self.separators.as_ref().map_or(": ", |s| &s.1));
                    self.write(run, out, &item, level + 1)
                })?;
                out.own("}");
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

    /// Writes a container with its items, separators, newlines and indents.
    fn write_items<T>(
        &self,
        run: &Run,
        (out, level): (&mut Traced, usize),
        open: &str,
        items: Vec<T>,
        mut one: impl FnMut(&mut Traced, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.own(open);
        let empty = items.is_empty();
        let between = match &self.separators {
            Some((item, _)) => item,
            None if self.indent.is_some() => ",",
            None => ", ",
        };
        // separators and indents are chosen by the template and can be long
        let indent = self.indent.as_ref().map_or(0, String::len);
        let each = between.len() + self.separators.as_ref().map_or(2, |s| s.1.len()) + indent * (level + 1);
        for (i, item) in items.into_iter().enumerate() {
            run.meter.charge(each)?;
            out.own(if i == 0 { "" } else { between });
            self.newline(out, level + 1);
            one(out, item)?;
        }
        if !empty {
            self.newline(out, level);
        }
        Ok(())
    }

    fn newline(&self, out: &mut Traced, level: usize) {
        if let Some(indent) = &self.indent {
            out.own("\n");
            (0..level).for_each(|_| out.own(indent));
        }
    }

    fn write_string(&self, run: &Run, out: &mut Traced, value: &Value) {
        out.own("\"");
        let piece = run.origins.piece(value);
        for (text, user) in piece.iter().flat_map(Piece::stretches) {
            out.with(user, |out| self.write_escaped(out, text));
        }
        out.own("\"");
    }

    fn write_escaped(&self, out: &mut String, text: &str) {
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

/// The contents of a container: keys and values, or elements.
pub(super) fn held(value: &Value) -> Vec<Value> {
    match value.kind() {
        ValueKind::Map if is_data(value) => {
            pairs(value).into_iter().flat_map(|(key, item)| [key, item]).collect()
        }
        ValueKind::Seq | ValueKind::Iterable => items(value),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_in_python() {
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
    fn reprs_as_in_python() {
        let value =
            Value::from(minijinja::value::Serde(serde_json::json!({"a": [1, 2.0, null, true], "b": "it's"})));
        let run = Run::new(&crate::ChatInput::default());
        assert_eq!(run.plain_text(&value).unwrap(), r#"{'a': [1, 2.0, None, True], 'b': "it's"}"#);
    }
}
