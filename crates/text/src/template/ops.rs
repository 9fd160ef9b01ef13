//! The operators rewritten code calls: Python's, metered.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::generator::{BoundMethod, Generator};
use super::items::{collected, item, looped, slice, spread};
use super::meter::{is_data, is_namespace};
use super::origins::Traced;
use super::rewrite::op;
use super::run::Run;
use super::{filters, methods, python};

/// Registers every function of [`op`].
pub(super) fn register(env: &mut Environment<'_>, run: &Arc<Run>) {
    let r = Arc::clone(run);
    env.add_filter(op::ADD, move |a: Value, b: Value| add(&r, &a, &b));
    let r = Arc::clone(run);
    env.add_filter(op::MUL, move |a: Value, b: Value| mul(&r, &a, &b));
    let r = Arc::clone(run);
    env.add_filter(op::REM, move |a: Value, b: Value| rem(&r, &a, &b));
    let r = Arc::clone(run);
    env.add_filter(op::CONCAT, move |a: Value, b: Value| concat(&r, &a, &b));
    let r = Arc::clone(run);
    env.add_filter(op::EQ, move |a: Value, b: Value| equal(&r, &a, &b));
    let r = Arc::clone(run);
    env.add_filter(op::NE, move |a: Value, b: Value| equal(&r, &a, &b).map(|same| !same));
    let r = Arc::clone(run);
    env.add_filter(op::ITEM, move |value: Value, key: Value| item(&r, &value, &key));
    let r = Arc::clone(run);
    env.add_filter(op::SLICE, move |value: Value, start: Value, stop: Value, step: Value| {
        slice(&r, &value, [start, stop, step])
    });
    let r = Arc::clone(run);
    env.add_filter(op::READ, move |value: ValueOrKwargs| {
        let value = value.into_value();
        r.meter.walk(&value).map(|_| value)
    });
    let r = Arc::clone(run);
    env.add_filter(op::BUILT, move |value: Value| built(&r, value));
    env.add_filter(op::STORED, |value: Value| match holds_namespace([&value]) {
        true => Err(no_namespace()),
        false => Ok(value),
    });
    let r = Arc::clone(run);
    env.add_filter(op::BEGIN, move || r.origins.begin());
    let r = Arc::clone(run);
    env.add_filter(op::CAPTURED, move |value: Value| r.origins.captured(value));
    let r = Arc::clone(run);
    env.add_filter(op::RETURNED, move |value: Value| returned(&r, r.origins.captured(value)));
    let r = Arc::clone(run);
    env.add_filter(op::LOOPED, move |value: Value| looped(&r, value));
    let r = Arc::clone(run);
    env.add_filter(op::SPREAD, move |lists: Rest<Value>| spread(&r, &lists));
    let r = Arc::clone(run);
    env.add_filter(op::FILTER, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (name, args) = split_name(&args);
        filters::apply(&r, state, name, args).and_then(|value| returned(&r, value))
    });
    let r = Arc::clone(run);
    env.add_filter(op::METHOD, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (name, args) = split_name(&args);
        methods::call(&r, state, name, args).and_then(|value| returned(&r, value))
    });
    let r = Arc::clone(run);
    env.add_filter(op::TEST, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (name, args) = split_name(&args);
        for value in args {
            r.meter.walk(value)?;
        }
        let name: String = name.split_whitespace().collect();
        state.perform_test(&name, args).map_err(|error| match error.kind() {
            ErrorKind::UnknownTest => Error::new(ErrorKind::UnknownTest, format!("no test named '{name}'")),
            _ => error,
        })
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

pub(super) fn add(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (run.origins.piece(a), run.origins.piece(b)) {
        run.meter.charge(x.text.len() + y.text.len())?;
        let mut out = Traced::with_capacity(x.text.len() + y.text.len());
        // as markupsafe: what joins a safe string is escaped
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

fn mul(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
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

fn rem(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
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

fn concat(run: &Run, a: &Value, b: &Value) -> Result<Value, Error> {
    let len = |value: &Value| value.as_str().map_or(0, str::len);
    let mut out = Traced::with_capacity(len(a) + len(b));
    python::write(run, &mut out, a)?;
    python::write(run, &mut out, b)?;
    Ok(run.origins.value(out))
}

/// `format % args` and `format.format(args)`; a width written in the format is memory asked for.
pub(super) fn formatted(
    run: &Run,
    style: FormatStyle,
    format: &Value,
    args: &[Value],
) -> Result<Value, Error> {
    const WIDEST: usize = 3; // digits
    let text = format.as_str().unwrap_or_default();
    let wide = text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > WIDEST);
    // a width taken from an argument: `%*d`, `{:{}}`
    let starred = matches!(style, FormatStyle::Printf) && text.contains('*');
    let nested = matches!(style, FormatStyle::StrFormat)
        && text.split('{').skip(1).any(|field| !field.is_empty() && !field.contains('}'));
    if wide || starred || nested {
        return Err(invalid("format widths are limited to three written digits"));
    }
    // any field can ask for any argument: `{0}{0}{0}`
    let fields = text.matches(['%', '{']).count();
    for arg in args {
        let cost = run.meter.walk(arg)?;
        run.meter.charge_again(cost, fields)?;
    }
    run.meter.charge(text.len().saturating_mul(500))?; // `%999d` is five bytes
    let made = Value::from(minijinja::formatting::format(style, text, args)?);
    // which field took what is the engine's knowledge
    let sources: Vec<Value> = args.iter().chain([format]).cloned().collect();
    run.inherit(made, &sources)
}

/// `a == b`, which costs no more than reading both.
fn equal(run: &Run, a: &Value, b: &Value) -> Result<bool, Error> {
    run.meter.walk(a)?;
    run.meter.walk(b)?;
    Ok(a == b)
}

/// A list, tuple or map just written: not too deep, and no namespace inside, which could make a cycle.
fn built(run: &Run, value: Value) -> Result<Value, Error> {
    run.meter.walk(&value)?;
    if holds_namespace(&python::held(&value)) { Err(no_namespace()) } else { Ok(value) }
}

pub(super) fn holds_namespace<'a>(values: impl IntoIterator<Item = &'a Value>) -> bool {
    values.into_iter().any(|value| value.as_object().is_some_and(is_namespace))
}

pub(super) fn no_namespace() -> Error {
    invalid("a namespace cannot be held by another value")
}

/// What a call gave back: charged, and lazy sequences made into lists.
fn returned(run: &Run, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable || Generator::is(&value) {
        run.meter.charge_shallow(&value)?;
        return Ok(value);
    }
    Ok(Value::from(collected(run, &value)?))
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
