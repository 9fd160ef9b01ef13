//! Filters and tests that differ between Jinja2 and the engine, or whose results can be long.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::arithmetic::add;
use super::filter_table::{COSTS, Cost, LAZY, PICKS, TRACED};
use super::format::formatted;
use super::generator::{BoundMethod, Generator};
use super::items::{collected, elements, is_iterable, item};
use super::meter::is_data;
use super::run::Run;
use super::texts::{case, indent, join, string, to_json};
use super::values::{input, invalid};
use super::{python, string_methods};

/// `args[0] | name(args[1..])`.
pub(super) fn apply(
    run: &Run,
    state: &mut State<'_, '_>,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let name: String = name.split_whitespace().collect();
    charge(run, &name, args)?;
    let value = match &*name {
        "map" => map(run, state, args)?,
        _ => state.apply_filter(&name, args).map_err(|error| match error.kind() {
            ErrorKind::UnknownFilter => {
                Error::new(ErrorKind::UnknownFilter, format!("no filter named '{name}'"))
            }
            _ => error,
        })?,
    };
    let text = args.first().is_some_and(|input| input.as_str().is_some());
    let value = match TRACED.contains(&&*name) || (PICKS.contains(&&*name) && !text) {
        true => value,
        false => run.inherit(value, args)?,
    };
    match &*name {
        // the engine would keep nested views
        "chain" if value.kind() == ValueKind::Map => {
            run.meter.charge_elements(value.len().unwrap_or(0).saturating_mul(4))?;
            return Ok(Value::from_pairs(python::pairs(&value)));
        }
        // lists in lists: checks the depth
        "batch" | "slice" | "zip" | "groupby" => {
            run.meter.walk(&value)?;
        }
        _ => {}
    }
    if !LAZY.contains(&&*name) || value.as_str().is_some() || Generator::is(&value) {
        return Ok(value);
    }
    Ok(Generator::wrap(collected(run, &value)?))
}

fn charge(run: &Run, name: &str, args: &[Value]) -> Result<(), Error> {
    let cost = COSTS.iter().find(|(of, _)| *of == name).map(|(_, cost)| cost);
    let Some((input, rest)) = args.split_first().filter(|_| cost.is_some()) else {
        return args.iter().try_for_each(|value| run.meter.charge_shallow(value));
    };
    let all = run.meter.walk(input)?;
    let given = rest.iter().try_fold(0, |sum, value| Ok::<u64, Error>(sum + run.meter.walk(value)?))?;
    let count = input.len().unwrap_or(1);
    match cost {
        // the path of an attribute is one of the arguments, and is followed for each comparison
        Some(Cost::Sorts) => {
            let rounds = 2 * (count.checked_ilog2().unwrap_or(0) as usize + 1);
            run.meter.charge_again(all, rounds)?;
            run.meter.charge_again(given, count.saturating_mul(rounds))
        }
        Some(Cost::Tests) => run.meter.charge_again(given, count),
        _ => Ok(()),
    }
}

/// Registers the filters and tests.
pub(super) fn register(env: &mut Environment<'_>, run: &Arc<Run>) {
    let r = Arc::clone(run);
    env.add_filter("tojson", move |args: Rest<ValueOrKwargs>| to_json(&r, &args.into_values()));
    let r = Arc::clone(run);
    env.add_filter("join", move |args: Rest<ValueOrKwargs>| join(&r, &args.into_values()));
    let r = Arc::clone(run);
    env.add_filter("replace", move |value: Value, old: Value, new: Value, count: Option<i64>| {
        let (value, old, new) = (r.text(&value)?, r.plain_text(&old)?, r.text(&new)?);
        let made = string_methods::replace(&r, &value.as_piece(), &old, &new.as_piece(), count)?;
        Ok::<Value, Error>(r.origins.value(made))
    });
    let r = Arc::clone(run);
    env.add_filter("indent", move |args: Rest<ValueOrKwargs>| indent(&r, &args.into_values()));
    let r = Arc::clone(run);
    env.add_filter("format", move |format: Value, args: Rest<Value>| {
        let format = string(&r, format)?;
        formatted(&r, FormatStyle::Printf, &format, &args)
    });
    let r = Arc::clone(run);
    env.add_filter("string", move |value: Value| string(&r, value));
    let r = Arc::clone(run);
    env.add_filter("safe", move |value: Value| {
        if value.is_safe() { Ok(value) } else { r.text(&value).map(|text| r.origins.safe_value(text)) }
    });
    let r = Arc::clone(run);
    env.add_filter("trim", move |value: Value, chars: Option<String>| {
        let text = r.text(&value)?;
        let piece = text.as_piece();
        r.meter.charge(piece.text.len().saturating_mul(chars.as_ref().map_or(0, String::len) / 16))?;
        let cut = |c: char| chars.as_ref().map_or(string_methods::is_space(c), |chars| chars.contains(c));
        Ok::<Value, Error>(r.origins.part(&piece.part(piece.text.trim_matches(cut))))
    });
    for name in ["upper", "lower", "title", "capitalize"] {
        let r = Arc::clone(run);
        env.add_filter(name, move |value: Value| r.plain_text(&value).map(|text| case(name, &text)));
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
    let r = Arc::clone(run);
    env.add_filter("list", move |value: Value| match is_iterable(&value) {
        true => elements(&r, &value).map(Value::from),
        false => Err(invalid(format!("'{}' object is not iterable", value.kind()))),
    });
    let r = Arc::clone(run);
    env.add_filter("sum", move |args: Rest<ValueOrKwargs>| sum(&r, &args.into_values()));
    for name in ["batch", "slice"] {
        let r = Arc::clone(run);
        env.add_filter(
            name,
            move |state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>| {
                r.meter.charge_elements(count)?;
                match name {
                    "batch" => minijinja::filters::batch(state, value, count, fill),
                    _ => minijinja::filters::slice(state, value, count, fill),
                }
            },
        );
    }

    env.add_test("divisibleby", |value: i128, by: i128| match value.checked_rem(by) {
        Some(rest) => Ok(rest == 0),
        None => Err(invalid(format!("divisibleby: {value} cannot be divided by {by}"))),
    });
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

/// `|map(attribute='a.b', default=x)` and `|map('filter', args..)`.
fn map(run: &Run, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (values, _, kwargs) = input(args)?;
    let items = elements(run, &values)?;
    let mut out = Vec::with_capacity(items.len());
    if let Some(attribute) = kwargs.get::<Option<Value>>("attribute")? {
        let default = kwargs.get::<Option<Value>>("default")?;
        kwargs.assert_all_used()?;
        for item in items {
            let found = at_path(run, &item, &attribute);
            out.push(match (found, &default) {
                (Ok(found), Some(default)) if found.is_undefined() => default.clone(),
                (Err(_), Some(default)) => default.clone(),
                (found, _) => found?,
            });
        }
        return Ok(Value::from(out));
    }
    let Some((name, rest)) = args.get(1..).and_then(<[Value]>::split_first) else {
        return Err(invalid("filter name is required"));
    };
    let name = name.as_str().ok_or_else(|| invalid("filter name must be a string"))?;
    for item in items {
        let args: Vec<Value> = std::iter::once(item).chain(rest.iter().cloned()).collect();
        out.push(apply(run, state, name, &args)?);
    }
    Ok(Value::from(out))
}

/// The value at `attribute='a.0.b'`.
fn at_path(run: &Run, value: &Value, attribute: &Value) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else { return item(run, value, attribute) };
    path.split('.').try_fold(value.clone(), |value, part| match part.parse::<usize>() {
        Ok(index) => item(run, &value, &Value::from(index)),
        Err(_) => {
            run.meter.charge(part.len())?;
            value.get_attr(part)
        }
    })
}

/// `|sum(attribute, start=0)`.
fn sum(run: &Run, args: &[Value]) -> Result<Value, Error> {
    let (values, rest, kwargs) = input(args)?;
    let pick = |at: usize, name: &str| match rest.get(at) {
        Some(found) => Ok(Some(found.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let (attribute, start) = (pick(0, "attribute")?.filter(|a| !a.is_none()), pick(1, "start")?);
    kwargs.assert_all_used()?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for mut value in elements(run, &values)? {
        if let Some(attribute) = &attribute {
            value = at_path(run, &value, attribute).unwrap_or_default();
        }
        if !value.is_undefined() {
            total = add(run, &total, &value)?;
        }
    }
    Ok(total)
}
