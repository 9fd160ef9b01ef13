//! Filters and tests where Jinja2 differs from the engine, or where a result can be long.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::generator::{BoundMethod, Generator};
use super::meter::{Meter, is_data};
use super::ops::{arguments, charge_shallow, formatted, invalid, is_iterable};
use super::{methods, python};

/// Filters that read all their input holds, not only its elements.
const DEEP: [&str; 11] =
    ["tojson", "string", "join", "sort", "unique", "min", "max", "groupby", "dictsort", "format", "pprint"];

/// Filters that give a generator in Python.
const LAZY: [&str; 10] =
    ["map", "select", "reject", "selectattr", "rejectattr", "unique", "items", "batch", "slice", "reverse"];

/// `args[0] | name(args[1..])`.
pub(super) fn apply(
    meter: &Meter,
    state: &mut State<'_, '_>,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    for value in args {
        if DEEP.contains(&name) { meter.walk(value)? } else { charge_shallow(meter, value)? }
    }
    let name: String = name.split_whitespace().collect();
    let value = state.apply_filter(&name, args).map_err(|error| match error.kind() {
        ErrorKind::UnknownFilter => Error::new(ErrorKind::UnknownFilter, format!("no filter named '{name}'")),
        _ => error,
    })?;
    if !LAZY.contains(&&*name) || value.as_str().is_some() || Generator::is(&value) {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        meter.charge(size_of::<Value>())?;
        items.push(item);
    }
    Ok(Generator::wrap(items))
}

/// Registers the filters and tests.
pub(super) fn register(env: &mut Environment<'_>, meter: &Arc<Meter>) {
    let m = Arc::clone(meter);
    env.add_filter("tojson", move |args: Rest<ValueOrKwargs>| to_json(&m, &args.into_values()));
    let m = Arc::clone(meter);
    env.add_filter("join", move |args: Rest<ValueOrKwargs>| join(&m, &args.into_values()));
    let m = Arc::clone(meter);
    env.add_filter("replace", move |value: Value, old: Value, new: Value, count: Option<i64>| {
        let [value, old, new] = [value, old, new].map(|value| python::str(&value));
        methods::replace(&m, &value, &old, &new, count)
    });
    let m = Arc::clone(meter);
    env.add_filter("indent", move |args: Rest<ValueOrKwargs>| indent(&m, &args.into_values()));
    let m = Arc::clone(meter);
    env.add_filter("format", move |format: Value, args: Rest<Value>| {
        formatted(&m, FormatStyle::Printf, &python::str(&format), &args)
    });
    env.add_filter("string", |value: Value| match value.as_str() {
        Some(_) => value, // keeps what is safe safe
        None => Value::from(python::str(&value)),
    });
    env.add_filter("trim", |value: Value, chars: Option<String>| {
        let text = python::str(&value);
        let cut = |c: char| chars.as_ref().map_or(methods::is_space(c), |chars| chars.contains(c));
        Value::from(text.trim_matches(cut))
    });
    for name in ["upper", "lower", "title", "capitalize"] {
        env.add_filter(name, move |value: Value| case(name, &python::str(&value)));
    }
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("int", |args: Rest<ValueOrKwargs>| to_number(&args.into_values(), true));
    env.add_filter("float", |args: Rest<ValueOrKwargs>| to_number(&args.into_values(), false));
    env.add_filter("items", |value: Value| match value.is_undefined() || is_data(&value) {
        true => Ok(python::pairs(&value)
            .into_iter()
            .map(|(key, value)| Value::from(Tuple::from([key, value])))
            .collect::<Value>()),
        false => Err(invalid("can only get item pairs from a mapping")),
    });
    env.add_filter("list", |value: Value| match is_iterable(&value) {
        true => Ok(Value::from(python::items(&value))),
        false => Err(invalid(format!("'{}' object is not iterable", value.kind()))),
    });
    for name in ["batch", "slice"] {
        let m = Arc::clone(meter);
        env.add_filter(
            name,
            move |state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>| {
                m.charge(count.saturating_mul(size_of::<Value>()))?;
                match name {
                    "batch" => minijinja::filters::batch(state, value, count, fill),
                    _ => minijinja::filters::slice(state, value, count, fill),
                }
            },
        );
    }

    env.add_test("sequence", |value: Value| {
        value.is_undefined() || value.as_str().is_some() || value.kind() == ValueKind::Seq || is_data(&value)
    });
    env.add_test("iterable", |value: Value| is_iterable(&value));
    env.add_test("mapping", |value: Value| is_data(&value));
    env.add_test("callable", |value: Value| {
        value.downcast_object_ref::<BoundMethod>().is_some()
            || value.kind() == ValueKind::Plain
            || value.as_object().is_some_and(|object| object.type_name().ends_with("::Macro"))
    });
}

/// A filter's input, its arguments by place, and by name.
fn input(args: &[Value]) -> Result<(Value, &[Value], Kwargs), Error> {
    let (places, names) = arguments(args)?;
    let (value, rest) = places.split_first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    Ok((value.clone(), rest, names))
}

fn case(name: &str, text: &str) -> Value {
    match name {
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "title" => Value::from(minijinja::filters::title(text.into())),
        _ => {
            let mut chars = text.chars();
            let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
            Value::from(first + &chars.as_str().to_lowercase())
        }
    }
}

fn length(value: Value) -> Result<usize, Error> {
    let sized = value.is_undefined() || value.as_str().is_some() || !Generator::is(&value);
    match value.len() {
        Some(len) if sized => Ok(len),
        _ if value.is_undefined() => Ok(0),
        _ => Err(invalid(format!("object of type '{}' has no len()", value.kind()))),
    }
}

fn default(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (value, rest, kwargs) = input(&args)?;
    let other = match rest.first() {
        Some(other) => Some(other.clone()),
        None => kwargs.get::<Option<Value>>("default_value")?,
    };
    let falsy = match rest.get(1) {
        Some(falsy) => falsy.is_true(),
        None => kwargs.get::<Option<Value>>("boolean")?.is_some_and(|falsy| falsy.is_true()),
    };
    kwargs.assert_all_used()?;
    Ok(match value.is_undefined() || (falsy && !value.is_true()) {
        true => other.unwrap_or_else(|| Value::from("")),
        false => value,
    })
}

/// `|int` and `|float`: what cannot be converted becomes the default.
fn to_number(args: &[Value], whole: bool) -> Result<Value, Error> {
    let (value, rest, kwargs) = input(args)?;
    let default = match rest.first() {
        Some(default) => Some(default.clone()),
        None => kwargs.get::<Option<Value>>("default")?,
    };
    kwargs.assert_all_used()?;
    let default = default.unwrap_or_else(|| if whole { Value::from(0) } else { Value::from(0.0) });
    let parsed = match (value.as_str().map(str::trim), value.kind()) {
        (Some(text), _) => text.parse::<f64>().ok(),
        (None, ValueKind::Bool) => Some(f64::from(u8::from(value.is_true()))),
        (None, ValueKind::Number) => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    if whole {
        let exact = match value.as_str() {
            Some(text) => text.trim().parse::<i64>().ok(),
            None => value.is_integer().then(|| i64::try_from(value.clone()).ok()).flatten(),
        };
        let cut = parsed.filter(|number| number.is_finite()).map(|number| number as i64);
        return Ok(exact.or(cut).map_or(default, Value::from));
    }
    Ok(parsed.map_or(default, Value::from))
}

fn to_json(meter: &Meter, args: &[Value]) -> Result<Value, Error> {
    let (value, rest, kwargs) = input(args)?;
    let pick = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let found = match rest.get(at) {
            Some(found) => Some(found.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(found.filter(|found| !found.is_none()))
    };
    let [ascii, indent, separators, sort] =
        [pick(0, "ensure_ascii")?, pick(1, "indent")?, pick(2, "separators")?, pick(3, "sort_keys")?];
    kwargs.assert_all_used()?;
    let indent = match indent {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_string(),
            None => {
                let width = i64::try_from(indent)?.max(0);
                meter.charge(usize::try_from(width).unwrap_or(usize::MAX))?;
                " ".repeat(width as usize)
            }
        }),
    };
    let separators = match separators.map(|pair| python::items(&pair)) {
        None => None,
        Some(pair) => match pair.as_slice() {
            [item, key] => Some((python::str(item), python::str(key))),
            _ => return Err(invalid("separators must be a pair of strings")),
        },
    };
    let dumps = python::Dumps {
        ensure_ascii: ascii.is_some_and(|ascii| ascii.is_true()),
        indent,
        separators,
        sort_keys: sort.is_some_and(|sort| sort.is_true()),
    };
    dumps.dump(&value, meter).map(Value::from)
}

fn join(meter: &Meter, args: &[Value]) -> Result<Value, Error> {
    let (values, rest, kwargs) = input(args)?;
    let pick = |at: usize, name: &str| match rest.get(at) {
        Some(found) => Ok(Some(found.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let (between, attribute) = (pick(0, "d")?, pick(1, "attribute")?);
    kwargs.assert_all_used()?;
    if !is_iterable(&values) {
        return Err(invalid(format!("'{}' object is not iterable", values.kind())));
    }
    let between = between.map(|between| python::str(&between)).unwrap_or_default();
    let mut out = String::new();
    for (i, mut value) in values.try_iter()?.enumerate() {
        if let Some(attribute) = &attribute {
            value = value.get_item(attribute)?;
        }
        let part = python::str(&value);
        meter.charge(part.len() + between.len())?;
        out.push_str(if i == 0 { "" } else { &between });
        out.push_str(&part);
    }
    Ok(Value::from(out))
}

/// `|indent(width=4, first=False, blank=False)`; the width may be a string.
fn indent(meter: &Meter, args: &[Value]) -> Result<Value, Error> {
    let (value, rest, kwargs) = input(args)?;
    let pick = |at: usize, name: &str| match rest.get(at) {
        Some(found) => Ok(Some(found.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let (width, first, blank) = (pick(0, "width")?, pick(1, "first")?, pick(2, "blank")?);
    kwargs.assert_all_used()?;
    let text = python::str(&value);
    let lines: Vec<&str> = text.split('\n').collect();
    let room = |bytes: usize| meter.charge(bytes.saturating_mul(lines.len()));
    let margin = match width {
        Some(width) if width.as_str().is_some() => python::str(&width),
        width => {
            let width = width.map(usize::try_from).transpose()?.unwrap_or(4);
            room(width)?;
            " ".repeat(width)
        }
    };
    room(margin.len())?;
    let (first, blank) = [first, blank].map(|flag| flag.is_some_and(|flag| flag.is_true())).into();
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { "\n" });
        // a blank line keeps its margin off, the first line only by its own flag
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}
