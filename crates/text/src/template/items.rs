//! Elements of strings, lists and other iterables: `[]`, `[:]`, `for` loops, `*arguments`.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python;
use super::run::Run;
use super::traced::{Traced, whole};
use super::values::invalid;

/// `value[key]`.
pub(super) fn item(run: &Run, value: &Value, key: &Value) -> Result<Value, Error> {
    // keys are hashed, and a position in a string is counted from its start
    run.meter.walk(key)?;
    match run.origins.piece(value) {
        None => value.get_item(key),
        Some(piece) => {
            run.meter.charge(piece.text.len())?;
            let found = value.get_item(key)?;
            match found.as_str() {
                Some(c) if !piece.spans.is_empty() => {
                    let len = c.len();
                    Ok(run.origins.respan(found, whole(len)))
                }
                _ => Ok(found),
            }
        }
    }
}

/// `value[start:stop:step]` by Python's rules.
pub(super) fn slice(run: &Run, value: &Value, bounds: [Value; 3]) -> Result<Value, Error> {
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
    if let Some(piece) = run.origins.piece(value) {
        run.meter.charge(piece.text.len().saturating_mul(size_of::<(char, bool)>()))?;
        let chars =
            piece.stretches().into_iter().flat_map(|(text, user)| text.chars().map(move |c| (c, user)));
        let chars: Vec<(char, bool)> = chars.collect();
        let mut out = Traced::default();
        for &(c, user) in picks(chars.len(), start, stop, step).filter_map(|i| chars.get(i)) {
            out.with(user, |out| out.push(c));
        }
        return Ok(run.origins.value(out));
    }
    if value.kind() != ValueKind::Seq {
        return Ok(Value::UNDEFINED); // as in Jinja2: no such element
    }
    run.meter.charge_elements(value.len().unwrap_or(0))?;
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

/// The elements of a sequence, which may be lazy and long.
pub(super) fn collected(run: &Run, value: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()? {
        run.meter.charge_elements(1)?;
        items.push(item);
    }
    Ok(items)
}

/// The iterable of a `for` loop.
pub(super) fn looped(run: &Run, value: Value) -> Result<Value, Error> {
    if !is_iterable(&value) {
        return Err(invalid(format!("'{}' object is not iterable", value.kind())));
    }
    run.meter.charge_shallow(&value)?;
    match run.origins.is_users(&value) {
        true => Ok(Value::from(elements(run, &value)?)),
        false => Ok(value),
    }
}

/// The elements of anything iterable; a string's are its characters.
pub(super) fn elements(run: &Run, value: &Value) -> Result<Vec<Value>, Error> {
    match run.origins.piece(value) {
        Some(piece) => {
            run.meter.charge_elements(piece.text.len())?;
            Ok(run.origins.characters(&piece))
        }
        None => collected(run, value),
    }
}

/// `f(*a, *b)`: the lists of arguments as one.
pub(super) fn spread(run: &Run, lists: &[Value]) -> Result<Value, Error> {
    let mut all = Vec::new();
    for list in lists {
        all.extend(elements(run, list)?);
    }
    Ok(Value::from(all))
}

/// Whether a `for` loop accepts it: undefined is empty, None is not iterable.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}
