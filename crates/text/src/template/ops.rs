//! The operators rewritten code calls: Python's, metered.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::generator::{BoundMethod, Generator};
use super::meter::{Meter, is_data, is_namespace};
use super::rewrite::op;
use super::{filters, methods, python};

/// Registers every function of [`op`].
pub(super) fn register(env: &mut Environment<'_>, meter: &Arc<Meter>) {
    let m = Arc::clone(meter);
    env.add_filter(op::ADD, move |a: Value, b: Value| add(&m, &a, &b));
    let m = Arc::clone(meter);
    env.add_filter(op::MUL, move |a: Value, b: Value| mul(&m, &a, &b));
    let m = Arc::clone(meter);
    env.add_filter(op::REM, move |a: Value, b: Value| rem(&m, &a, &b));
    let m = Arc::clone(meter);
    env.add_filter(op::CONCAT, move |a: Value, b: Value| concat(&m, &a, &b));
    let m = Arc::clone(meter);
    env.add_filter(op::SLICE, move |value: Value, start: Value, stop: Value, step: Value| {
        slice(&m, &value, [start, stop, step])
    });
    let m = Arc::clone(meter);
    env.add_filter(op::READ, move |value: ValueOrKwargs| {
        let value = value.into_value();
        m.walk(&value).map(|()| value)
    });
    let m = Arc::clone(meter);
    env.add_filter(op::BUILT, move |value: Value| built(&m, value));
    env.add_filter(op::STORED, |value: Value| match holds_namespace([&value]) {
        true => Err(no_namespace()),
        false => Ok(value),
    });
    let m = Arc::clone(meter);
    env.add_filter(op::RETURNED, move |value: Value| returned(&m, value));
    env.add_filter(op::LOOPED, |value: Value| match is_iterable(&value) {
        true => Ok(value),
        false => Err(invalid(format!("'{}' object is not iterable", value.kind()))),
    });
    let m = Arc::clone(meter);
    env.add_filter(op::FILTER, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (name, args) = split_name(&args);
        filters::apply(&m, state, name, args).and_then(|value| returned(&m, value))
    });
    let m = Arc::clone(meter);
    env.add_filter(op::METHOD, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (name, args) = split_name(&args);
        methods::call(&m, state, name, args).and_then(|value| returned(&m, value))
    });
    env.add_filter(op::ATTRIBUTE, |value: Value, name: String| attribute(&value, name));
}

pub(super) fn invalid(words: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, words)
}

/// Arguments by place and by name.
pub(super) fn arguments(args: &[Value]) -> Result<(&[Value], Kwargs), Error> {
    if let Some((last, places)) = args.split_last()
        && !last.is_undefined()
        && let Ok(names) = Kwargs::try_from(last.clone())
    {
        return Ok((places, names));
    }
    Ok((args, Kwargs::try_from(Value::UNDEFINED)?))
}

fn split_name(args: &[Value]) -> (&str, &[Value]) {
    match args.split_last() {
        Some((name, args)) => (name.as_str().unwrap_or_default(), args),
        None => ("", &[]),
    }
}

fn unsupported(sign: &str, a: &Value, b: &Value) -> Error {
    invalid(format!("unsupported operands for {sign}: '{}' and '{}'", a.kind(), b.kind()))
}

/// A number as Python sees it: whole or not; booleans are whole.
enum Number {
    Int(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(i128::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Int),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

fn int(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

/// Applies one of two functions, by whether both sides are whole numbers.
fn arithmetic(
    sign: &str,
    (a, b): (&Value, &Value),
    ints: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => {
            ints(x, y).map(int).ok_or_else(|| invalid(format!("unable to calculate {x} {sign} {y}")))
        }
        (Some(x), Some(y)) => {
            let float = |n| match n {
                Number::Int(n) => n as f64,
                Number::Float(n) => n,
            };
            Ok(Value::from(floats(float(x), float(y))))
        }
        _ => Err(unsupported(sign, a, b)),
    }
}

fn add(meter: &Meter, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        meter.charge(x.len() + y.len())?;
        // as markupsafe: what joins a safe string is escaped
        return Ok(match (a.is_safe(), b.is_safe()) {
            (false, false) => Value::from([x, y].concat()),
            (true, true) => Value::from_safe_string([x, y].concat()),
            (true, false) => Value::from_safe_string(format!("{x}{}", escaped(y))),
            (false, true) => Value::from_safe_string(format!("{}{y}", escaped(x))),
        });
    }
    let lists = a.kind() == ValueKind::Seq && b.kind() == ValueKind::Seq;
    if lists && a.is_tuple() == b.is_tuple() {
        let (x, y) = (a.len().unwrap_or(0), b.len().unwrap_or(0));
        meter.charge((x + y) * size_of::<Value>())?;
        let all: Vec<Value> = a.try_iter()?.chain(b.try_iter()?).collect();
        return Ok(if a.is_tuple() { Value::from(Tuple::from(all)) } else { Value::from(all) });
    }
    arithmetic("+", (a, b), i128::checked_add, |x, y| x + y)
}

/// `markupsafe.escape`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

fn mul(meter: &Meter, a: &Value, b: &Value) -> Result<Value, Error> {
    for (value, times) in [(a, b), (b, a)] {
        let Some(Number::Int(times)) = number(times) else {
            continue;
        };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = value.as_str() {
            meter.charge(text.len().saturating_mul(times))?;
            return Ok(Value::from(text.repeat(times)));
        }
        if value.kind() == ValueKind::Seq {
            let items = python::items(value);
            meter.charge(items.len().saturating_mul(times).saturating_mul(size_of::<Value>()))?;
            let all: Vec<Value> = match items.is_empty() {
                true => items,
                false => std::iter::repeat_n(items, times).flatten().collect(),
            };
            return Ok(if value.is_tuple() { Value::from(Tuple::from(all)) } else { Value::from(all) });
        }
    }
    arithmetic("*", (a, b), i128::checked_mul, |x, y| x * y)
}

fn rem(meter: &Meter, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        let args = if b.is_tuple() { python::items(b) } else { vec![b.clone()] };
        return formatted(meter, FormatStyle::Printf, format, &args);
    }
    if matches!(number(b), Some(Number::Int(0) | Number::Float(0.0))) {
        return Err(invalid("modulo by zero"));
    }
    let whole = |x: i128, y: i128| {
        let r = x.checked_rem(y)?;
        Some(if r != 0 && (r < 0) != (y < 0) { r + y } else { r })
    };
    arithmetic("%", (a, b), whole, |x, y| {
        let r = x % y;
        if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
    })
}

fn concat(meter: &Meter, a: &Value, b: &Value) -> Result<Value, Error> {
    meter.walk(a)?;
    meter.walk(b)?;
    Ok(Value::from(python::str(a) + &python::str(b)))
}

/// `format % args` and `format.format(args)`; a width written in the format is memory asked for.
pub(super) fn formatted(
    meter: &Meter,
    style: FormatStyle,
    format: &str,
    args: &[Value],
) -> Result<Value, Error> {
    const WIDEST: usize = 3; // digits
    let wide = format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > WIDEST);
    // a width taken from an argument: `%*d`, `{:{}}`
    let starred = matches!(style, FormatStyle::Printf) && format.contains('*');
    let nested = matches!(style, FormatStyle::StrFormat)
        && format.split('{').skip(1).any(|field| !field.is_empty() && !field.contains('}'));
    if wide || starred || nested {
        return Err(invalid("format widths are limited to three written digits"));
    }
    for arg in args {
        meter.walk(arg)?;
    }
    meter.charge(format.len().saturating_mul(500))?; // `%999d` is five bytes
    Ok(Value::from(minijinja::formatting::format(style, format, args)?))
}

/// `value[start:stop:step]` by Python's rules.
fn slice(meter: &Meter, value: &Value, bounds: [Value; 3]) -> Result<Value, Error> {
    let mut bounds = bounds.into_iter().map(|bound| match bound.is_none() {
        true => Ok(None),
        false => i64::try_from(bound).map(Some),
    });
    let mut next = || bounds.next().unwrap_or(Ok(None));
    let (start, stop, step) = (next()?, next()?, next()?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    charge_shallow(meter, value)?;
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let picked = picks(chars.len(), start, stop, step).filter_map(|i| chars.get(i));
        return Ok(Value::from(picked.collect::<String>()));
    }
    if value.kind() != ValueKind::Seq {
        return Ok(Value::UNDEFINED); // as jinja2: no such element
    }
    let items = python::items(value);
    let picked: Vec<Value> =
        picks(items.len(), start, stop, step).filter_map(|i| items.get(i).cloned()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(picked)) } else { Value::from(picked) })
}

/// The indices a slice of `len` elements picks, in order.
fn picks(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: i64| if bound < 0 { bound.saturating_add(len) } else { bound }.clamp(low, high);
    let first = start.map_or(if step > 0 { low } else { high }, place);
    let last = stop.map_or(if step > 0 { high } else { low }, place);
    let mut at = Some(first);
    std::iter::from_fn(move || {
        let now = at.filter(|&i| if step > 0 { i < last } else { i > last })?;
        at = now.checked_add(step);
        usize::try_from(now).ok()
    })
}

/// A list, tuple or map just written: not too deep, and no namespace inside, which could make a cycle.
fn built(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.walk(&value)?;
    let held = match value.kind() {
        ValueKind::Map => python::pairs(&value).into_iter().map(|(_, item)| item).collect(),
        _ => python::items(&value),
    };
    if holds_namespace(&held) { Err(no_namespace()) } else { Ok(value) }
}

pub(super) fn holds_namespace<'a>(values: impl IntoIterator<Item = &'a Value>) -> bool {
    values.into_iter().any(|value| value.as_object().is_some_and(is_namespace))
}

pub(super) fn no_namespace() -> Error {
    invalid("a namespace cannot be held by another value")
}

/// What a call gave back: charged, and lazy sequences made into lists.
fn returned(meter: &Meter, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable || Generator::is(&value) {
        charge_shallow(meter, &value)?;
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        meter.charge(size_of::<Value>())?;
        items.push(item);
    }
    Ok(Value::from(items))
}

/// Charges a string's bytes or a container's elements, not what they hold.
pub(super) fn charge_shallow(meter: &Meter, value: &Value) -> Result<(), Error> {
    meter.charge(match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(size_of::<Value>()),
    })
}

/// Can a `for` go over it? Undefined can (no turns), None cannot.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `value.name` where `name` is a method of dictionaries.
fn attribute(value: &Value, name: String) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if !is_data(value) {
        return value.get_attr(&name);
    }
    Ok(match methods::mutates(&name) {
        true => Value::UNDEFINED, // hidden by the sandbox
        false => Value::from_object(BoundMethod { of: value.clone(), name }),
    })
}
