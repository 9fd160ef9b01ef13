//! The functions that rewritten code calls: Python's operators, metered.

use std::sync::Arc;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::arithmetic::{add, concat, mul, rem};
use super::generator::{BoundMethod, Generator};
use super::items::{collected, item, looped, slice, spread};
use super::meter::{is_data, is_namespace};
use super::rewrite::op;
use super::run::Run;
use super::values::invalid;
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

fn split_name(args: &[Value]) -> (&str, &[Value]) {
    match args.split_last() {
        Some((name, args)) => (name.as_str().unwrap_or_default(), args),
        None => ("", &[]),
    }
}

/// `a == b`, which costs no more than reading both.
fn equal(run: &Run, a: &Value, b: &Value) -> Result<bool, Error> {
    run.meter.walk(a)?;
    run.meter.walk(b)?;
    Ok(a == b)
}

/// Checks a new list, tuple or map: its depth, and that it contains no namespace, which could form a cycle.
fn built(run: &Run, value: Value) -> Result<Value, Error> {
    run.meter.walk(&value)?;
    if holds_namespace(&python::held(&value)) { Err(no_namespace()) } else { Ok(value) }
}

pub(super) fn holds_namespace<'a>(values: impl IntoIterator<Item = &'a Value>) -> bool {
    values.into_iter().any(|value| value.as_object().is_some_and(is_namespace))
}

pub(super) fn no_namespace() -> Error {
    invalid("a namespace cannot be stored in another value")
}

/// Charges the result of a call, and turns lazy sequences into lists.
fn returned(run: &Run, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable || Generator::is(&value) {
        run.meter.charge_shallow(&value)?;
        return Ok(value);
    }
    Ok(Value::from(collected(run, &value)?))
}

/// `value.name` for a `name` that is a method of dictionaries.
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
