//! Arguments and errors, shared by operators, filters and methods.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

/// An error of a template.
pub(super) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Splits arguments into positional and keyword arguments.
pub(super) fn arguments(args: &[Value]) -> Result<(&[Value], Kwargs), Error> {
    if let Some((last, positional)) = args.split_last()
        && !last.is_undefined()
        && let Ok(keywords) = Kwargs::try_from(last.clone())
    {
        return Ok((positional, keywords));
    }
    Ok((args, Kwargs::try_from(Value::UNDEFINED)?))
}

/// A filter's input, its positional arguments and its keyword arguments.
pub(super) fn input(args: &[Value]) -> Result<(Value, &[Value], Kwargs), Error> {
    let (positional, keywords) = arguments(args)?;
    let (value, rest) = positional.split_first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    Ok((value.clone(), rest, keywords))
}
