//! Methods of Python's strings, lists and dictionaries.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::meter::is_data;
use super::run::Run;
use super::traced::Traced;
use super::values::invalid;
use super::{python, string_methods};

/// Methods that mutate a value; the sandbox hides them.
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
pub(super) fn call(run: &Run, state: &mut State<'_, '_>, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some((receiver, rest)) = args.split_first() else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    for value in args {
        run.meter.charge_shallow(value)?;
    }
    if receiver.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if let Some(piece) = run.origins.piece(receiver) {
        let value = match string_methods::call(run, receiver, &piece, name, rest)? {
            Some(value) if string_methods::TRACED.contains(&name) => value,
            Some(value) => run.inherit(value, args)?,
            None => run.inherit(receiver.call_method(state, name, rest)?, args)?,
        };
        // methods of a safe string return safe strings
        return Ok(match run.origins.piece(&value) {
            Some(piece) if receiver.is_safe() => {
                run.origins.safe_value(Traced { text: piece.text.to_owned(), spans: piece.spans })
            }
            _ => value,
        });
    }
    if is_data(receiver) {
        if mutates(name) {
            return Err(hidden(name, "dict"));
        }
        if let Some(value) = dict(run, receiver, name, rest)? {
            return Ok(value);
        }
    } else if receiver.kind() == ValueKind::Seq {
        if mutates(name) {
            return Err(hidden(name, "list"));
        }
        if let Some(value) = list(run, receiver, name, rest)? {
            return Ok(value);
        }
    } else if name == "cycle" && rest.is_empty() {
        return Err(invalid("loop.cycle() takes at least one argument"));
    }
    // `loop.changed(..)` compares all of its arguments
    for value in rest {
        run.meter.walk(value)?;
    }
    // a macro in a namespace writes to a separate output
    run.origins.begin();
    let value = receiver.call_method(state, name, rest)?;
    Ok(run.origins.captured(value))
}

fn hidden(name: &str, of: &str) -> Error {
    invalid(format!("access to attribute '{name}' of '{of}' object is unsafe"))
}

fn dict(run: &Run, receiver: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pairs = || python::pairs(receiver).into_iter();
    Ok(Some(match name {
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(args)?;
            run.meter.walk(&key)?; // to be hashed
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

fn list(run: &Run, receiver: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "index" | "count" => {
            let (wanted,): (Value,) = from_args(args)?;
            run.meter.walk(receiver)?;
            run.meter.walk(&wanted)?;
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
