//! Python's `+`, `*`, `%` and Jinja's `~`, with metered costs.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::format::formatted;
use super::python;
use super::run::Run;
use super::traced::Traced;
use super::values::invalid;

fn unsupported(sign: &str, a: &Value, b: &Value) -> Error {
    invalid(format!("unsupported operands for {sign}: '{}' and '{}'", a.kind(), b.kind()))
}

/// A number in Python's sense: booleans are integers.
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

/// Applies `ints` if both sides are integers, otherwise `floats`.
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

pub(super) fn add(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (run.origins.piece(a), run.origins.piece(b)) {
        run.meter.charge(x.text.len() + y.text.len())?;
        let mut out = Traced::with_capacity(x.text.len() + y.text.len());
        // as in markupsafe: text added to a safe string is escaped
        let safe = a.is_safe() || b.is_safe();
        for (value, piece) in [(a, x), (b, y)] {
            match safe && !value.is_safe() {
                true => out.with(!piece.spans.is_empty(), |out| out.push_str(&escaped(piece.text))),
                false => out.push(&piece),
            }
        }
        return Ok(if safe { run.origins.safe_value(out) } else { run.origins.value(out) });
    }
    let lists = a.kind() == ValueKind::Seq && b.kind() == ValueKind::Seq;
    if lists && a.is_tuple() == b.is_tuple() {
        run.meter.charge_elements(a.len().unwrap_or(0) + b.len().unwrap_or(0))?;
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

pub(super) fn mul(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
    for (value, times) in [(a, b), (b, a)] {
        let Some(Number::Int(times)) = number(times) else {
            continue;
        };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = value.as_str() {
            run.meter.charge(text.len().saturating_mul(times))?;
            let product = Value::from(text.repeat(if text.is_empty() { 0 } else { times }));
            return run.inherit(product, std::slice::from_ref(value));
        }
        if value.kind() == ValueKind::Seq {
            let items = python::items(value);
            run.meter.charge_elements(items.len().saturating_mul(times.saturating_add(1)))?;
            let all: Vec<Value> = match items.is_empty() {
                true => items,
                false => std::iter::repeat_n(items, times).flatten().collect(),
            };
            return Ok(if value.is_tuple() { Value::from(Tuple::from(all)) } else { Value::from(all) });
        }
    }
    arithmetic("*", (a, b), i128::checked_mul, |x, y| x * y)
}

pub(super) fn rem(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        let args = if b.is_tuple() { python::items(b) } else { vec![b.clone()] };
        return formatted(run, FormatStyle::Printf, a, &args);
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

pub(super) fn concat(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
    let len = |value: &Value| value.as_str().map_or(0, str::len);
    let mut out = Traced::with_capacity(len(a) + len(b));
    python::write(run, &mut out, a)?;
    python::write(run, &mut out, b)?;
    Ok(run.origins.value(out))
}
