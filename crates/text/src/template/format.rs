//! `%` formatting and `str.format`, with bounded widths.

use minijinja::formatting::FormatStyle;
use minijinja::{Error, Value};

use super::run::Run;
use super::values::invalid;

/// `format % args` and `format.format(args)`; a width in the format allocates memory.
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
        return Err(invalid("format widths are limited to three literal digits"));
    }
    // any field can use any argument: `{0}{0}{0}`
    let fields = text.matches(['%', '{']).count();
    for arg in args {
        let cost = run.meter.walk(arg)?;
        run.meter.charge_again(cost, fields)?;
    }
    run.meter.charge(text.len().saturating_mul(500))?; // `%999d` is five bytes
    let made = Value::from(minijinja::formatting::format(style, text, args)?);
    // only the engine knows which field used which argument
    let sources: Vec<Value> = args.iter().chain([format]).cloned().collect();
    run.inherit(made, &sources)
}
