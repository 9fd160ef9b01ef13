//! Methods of Python's strings, lists and dictionaries.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::meter::{Meter, is_data};
use super::ops::{arguments, charge_shallow, formatted, invalid};
use super::python;

/// Names that would change a value in place; the sandbox hides them.
pub(super) fn mutates(name: &str) -> bool {
    matches!(
        name,
        "append"
            | "clear"
            | "extend"
            | "insert"
            | "pop"
            | "popitem"
            | "remove"
            | "reverse"
            | "setdefault"
            | "sort"
            | "update"
    )
}

/// `args[0].name(args[1..])`.
pub(super) fn call(
    meter: &Meter,
    state: &mut State<'_, '_>,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some((receiver, args)) = args.split_first() else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    for value in std::iter::once(receiver).chain(args) {
        charge_shallow(meter, value)?;
    }
    if receiver.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if let Some(text) = receiver.as_str() {
        if let Some(value) = string(meter, text, name, args)? {
            // methods of a safe string give safe strings
            return Ok(match value.as_str() {
                Some(text) if receiver.is_safe() => Value::from_safe_string(text.to_string()),
                _ => value,
            });
        }
    } else if is_data(receiver) {
        if mutates(name) {
            return Err(hidden(name, "dict"));
        }
        if let Some(value) = dict(receiver, name, args)? {
            return Ok(value);
        }
    } else if receiver.kind() == ValueKind::Seq {
        if mutates(name) {
            return Err(hidden(name, "list"));
        }
        if let Some(value) = list(meter, receiver, name, args)? {
            return Ok(value);
        }
    }
    receiver.call_method(state, name, args)
}

fn hidden(name: &str, of: &str) -> Error {
    invalid(format!("access to attribute '{name}' of '{of}' object is unsafe"))
}

fn dict(receiver: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pairs = || python::pairs(receiver).into_iter();
    Ok(Some(match name {
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(args)?;
            let found = receiver.as_object().and_then(|object| object.get_value(&key));
            found.or(default).unwrap_or_else(|| Value::from(()))
        }
        "items" => {
            let () = from_args(args)?;
            pairs().map(|(key, value)| Value::from(Tuple::from([key, value]))).collect()
        }
        "keys" => {
            let () = from_args(args)?;
            pairs().map(|(key, _)| key).collect()
        }
        "values" => {
            let () = from_args(args)?;
            pairs().map(|(_, value)| value).collect()
        }
        "copy" => receiver.clone(),
        _ => return Ok(None),
    }))
}

fn list(meter: &Meter, receiver: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "index" | "count" => {
            let (wanted,): (Value,) = from_args(args)?;
            meter.walk(receiver)?;
            let mut found = receiver.try_iter()?.enumerate().filter(|(_, item)| *item == wanted);
            match name {
                "count" => Value::from(found.count()),
                _ => Value::from(found.next().ok_or_else(|| invalid("value is not in list"))?.0),
            }
        }
        "copy" => receiver.clone(),
        _ => return Ok(None),
    }))
}

fn string(meter: &Meter, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let cut = |c: char| match chars {
                Some(chars) => chars.contains(c),
                None => is_space(c),
            };
            Value::from(match name {
                "lstrip" => text.trim_start_matches(cut),
                "rstrip" => text.trim_end_matches(cut),
                _ => text.trim_matches(cut),
            })
        }
        "split" | "rsplit" => {
            let (args, kwargs) = arguments(args)?;
            let pick = |at: usize, name: &str| match args.get(at) {
                Some(value) => Ok(Some(value.clone())),
                None => kwargs.get::<Option<Value>>(name),
            };
            let (sep, most) = (pick(0, "sep")?, pick(1, "maxsplit")?);
            kwargs.assert_all_used()?;
            let sep = sep.filter(|sep| !sep.is_none());
            if sep.as_ref().is_some_and(|sep| sep.as_str().is_none()) {
                return Err(invalid("split: the separator must be a string"));
            }
            let most = most.map(i64::try_from).transpose()?.and_then(|most| usize::try_from(most).ok());
            meter.charge(text.len().saturating_mul(size_of::<Value>()) / 2)?;
            split(text, sep.as_ref().and_then(Value::as_str), most.unwrap_or(usize::MAX), name == "rsplit")?
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            let lines = text.split_inclusive('\n');
            let bare = |line: &str| {
                let line = line.strip_suffix('\n').unwrap_or(line);
                line.strip_suffix('\r').unwrap_or(line).to_string()
            };
            lines
                .map(|line| if keep == Some(true) { line.to_string() } else { bare(line) })
                .map(Value::from)
                .collect()
        }
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(meter, text, old, new, count)?
        }
        "join" => {
            let (values,): (Value,) = from_args(args)?;
            let mut parts = Vec::new();
            for value in values.try_iter()? {
                let part = value
                    .as_str()
                    .ok_or_else(|| invalid(format!("join: expected string, {} found", value.kind())))?;
                meter.charge(part.len() + text.len())?;
                parts.push(part.to_string());
            }
            Value::from(parts.join(text))
        }
        "format" => formatted(meter, FormatStyle::StrFormat, text, args)?,
        "title" => {
            let () = from_args(args)?;
            let mut inside = false;
            let mut out = String::new();
            for c in text.chars() {
                if inside {
                    out.extend(c.to_lowercase())
                } else {
                    out.extend(c.to_uppercase())
                }
                inside = c.is_alphabetic();
            }
            Value::from(out)
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(part),
                _ => text.strip_suffix(part),
            };
            Value::from(rest.unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            if sep.is_empty() {
                return Err(invalid("empty separator"));
            }
            let parts = match name {
                "partition" => text.split_once(sep),
                _ => text.rsplit_once(sep),
            };
            let three = match parts {
                Some((before, after)) => [before, sep, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(three.map(Value::from)))
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let (width, fill): (usize, Option<String>) = from_args(args)?;
            let missing = width.saturating_sub(text.chars().count());
            let fill = if name == "zfill" { "0".into() } else { fill.unwrap_or_else(|| " ".into()) };
            meter.charge(missing.saturating_mul(fill.len()))?;
            let left = match name {
                "ljust" => 0,
                "center" => missing / 2 + (missing & width & 1),
                _ => missing,
            };
            Value::from(fill.repeat(left) + text + &fill.repeat(missing - left))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if name == "index" { text.find(part) } else { text.rfind(part) };
            let at = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text.get(..at).unwrap_or_default().chars().count())
        }
        _ => return Ok(None),
    }))
}

/// `str.isspace` of one character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `text.replace(old, new, count)`.
pub(super) fn replace(
    meter: &Meter,
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<Value, Error> {
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    meter.charge(found.min(most).saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(Value::from(text.replacen(old, new, most)))
}

/// `str.split` and `str.rsplit`: at most `most` cuts, at whitespace where there is no separator.
fn split(text: &str, sep: Option<&str>, most: usize, from_right: bool) -> Result<Value, Error> {
    let parts = most.saturating_add(1);
    let mut out: Vec<&str> = match (sep, from_right) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(sep), false) => text.splitn(parts, sep).collect(),
        (Some(sep), true) => text.rsplitn(parts, sep).collect(),
        (None, _) => {
            let mut words = Vec::new();
            let trim = |text: &str| -> (usize, usize) {
                let start = text.len() - text.trim_start_matches(is_space).len();
                (start, text.trim_end_matches(is_space).len().max(start))
            };
            let (start, end) = trim(text);
            let mut rest = text.get(start..end).unwrap_or_default();
            while !rest.is_empty() {
                let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let Some(at) = cut.filter(|_| words.len() < most) else {
                    words.push(rest);
                    break;
                };
                let (left, right) = rest.split_at(at);
                if from_right {
                    words.push(right.trim_start_matches(is_space));
                    rest = left.trim_end_matches(is_space);
                } else {
                    words.push(left);
                    rest = right.trim_start_matches(is_space);
                }
            }
            words
        }
    };
    if from_right {
        out.reverse();
    }
    Ok(out.into_iter().map(Value::from).collect())
}
