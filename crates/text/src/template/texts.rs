//! Filters that produce text: `tojson`, `join`, `indent`, `string`, and upper and lower case.

use minijinja::{Error, Value};

use super::items::{elements, is_iterable};
use super::python;
use super::run::Run;
use super::traced::Traced;
use super::values::{input, invalid};

pub(super) fn to_json(run: &Run, args: &[Value]) -> Result<Value, Error> {
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
                run.meter.charge(usize::try_from(width).unwrap_or(usize::MAX))?;
                " ".repeat(width as usize)
            }
        }),
    };
    let separators = match separators.map(|pair| python::items(&pair)) {
        None => None,
        Some(pair) => match pair.as_slice() {
            [item, key] => Some((run.plain_text(item)?, run.plain_text(key)?)),
            _ => return Err(invalid("separators must be a pair of strings")),
        },
    };
    let dumps = python::Dumps {
        ensure_ascii: ascii.is_some_and(|ascii| ascii.is_true()),
        indent,
        separators,
        sort_keys: sort.is_some_and(|sort| sort.is_true()),
    };
    dumps.dump(run, &value).map(|text| run.origins.value(text))
}

pub(super) fn join(run: &Run, args: &[Value]) -> Result<Value, Error> {
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
    let between = between.map(|between| run.text(&between)).transpose()?.unwrap_or_default();
    let mut out = Traced::default();
    for (i, mut value) in elements(run, &values)?.into_iter().enumerate() {
        if let Some(attribute) = &attribute {
            run.meter.walk(attribute)?;
            value = value.get_item(attribute)?;
        }
        run.meter.charge(between.text.len())?;
        if i > 0 {
            out.push(&between.as_piece());
        }
        python::write(run, &mut out, &value)?;
    }
    Ok(run.origins.value(out))
}

/// `|indent(width=4, first=False, blank=False)`; the width may be a string.
pub(super) fn indent(run: &Run, args: &[Value]) -> Result<Value, Error> {
    let (value, rest, kwargs) = input(args)?;
    let pick = |at: usize, name: &str| match rest.get(at) {
        Some(found) => Ok(Some(found.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let (width, first, blank) = (pick(0, "width")?, pick(1, "first")?, pick(2, "blank")?);
    kwargs.assert_all_used()?;
    let text = run.text(&value)?;
    let piece = text.as_piece();
    let lines = piece.text.matches('\n').count() + 1;
    let room = |bytes: usize| run.meter.charge(bytes.saturating_mul(lines));
    let margin = match width {
        Some(width) if width.as_str().is_some() => run.plain_text(&width)?,
        width => {
            let width = width.map(usize::try_from).transpose()?.unwrap_or(4);
            room(width)?;
            " ".repeat(width)
        }
    };
    room(margin.len())?;
    let (first, blank) = [first, blank].map(|flag| flag.is_some_and(|flag| flag.is_true())).into();
    let mut out = Traced::default();
    for (i, line) in piece.text.split('\n').enumerate() {
        out.own(if i == 0 { "" } else { "\n" });
        // blank lines are not indented; the first line has its own flag
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.own(&margin);
        }
        out.push(&piece.part(line));
    }
    Ok(run.origins.value(out))
}

/// `str(value)`; safe strings stay safe.
pub(super) fn string(run: &Run, value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value),
        None => run.text(&value).map(|text| run.origins.value(text)),
    }
}

pub(super) fn case(name: &str, text: &str) -> Value {
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
