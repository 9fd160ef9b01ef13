//! Methods of Python's strings.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Tuple, from_args};
use minijinja::{Error, Value};

use super::format::formatted;
use super::items::elements;
use super::run::Run;
use super::traced::{Piece, Traced};
use super::values::{arguments, invalid};

/// Methods that track the origins of their results, or return no text.
pub(super) const TRACED: [&str; 15] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "replace",
    "join",
    "format",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "index",
    "rindex",
];

/// `piece.name(args)`; `None` if the engine has the method. `receiver` is the value of `piece`.
pub(super) fn call(
    run: &Run,
    receiver: &Value,
    piece: &Piece<'_>,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let text = piece.text;
    let value = match name {
        "strip" | "lstrip" | "rstrip" => strip(run, piece, name, args)?,
        "split" | "rsplit" => split_call(run, piece, name, args)?,
        "splitlines" => split_lines(run, piece, args)?,
        "replace" => {
            let (old, new, count): (&str, &Value, Option<i64>) = from_args(args)?;
            let new =
                run.origins.piece(new).ok_or_else(|| invalid("replace: the new text must be a string"))?;
            run.origins.value(replace(run, piece, old, &new, count)?)
        }
        "join" => join(run, piece, args)?,
        "format" => formatted(run, FormatStyle::StrFormat, receiver, args)?,
        "title" | "swapcase" | "casefold" => {
            let () = from_args(args)?;
            Value::from(case(name, text))
        }
        "removeprefix" | "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(affix),
                _ => text.strip_suffix(affix),
            };
            run.origins.part(&piece.part(rest.unwrap_or(text)))
        }
        "partition" | "rpartition" => partition(run, piece, name, args)?,
        "center" | "ljust" | "rjust" | "zfill" => pad(run, text, name, args)?,
        "index" | "rindex" => {
            let (needle,): (&str,) = from_args(args)?;
            let found = if name == "index" { text.find(needle) } else { text.rfind(needle) };
            let at = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text.get(..at).unwrap_or_default().chars().count())
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// `strip`, `lstrip` and `rstrip`.
fn strip(run: &Run, piece: &Piece<'_>, name: &str, args: &[Value]) -> Result<Value, Error> {
    let text = piece.text;
    let (chars,): (Option<&str>,) = from_args(args)?;
    // each character is compared with all of `chars`
    run.meter.charge(text.len().saturating_mul(chars.map_or(0, str::len) / 16))?;
    let cut = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let stripped = match name {
        "lstrip" => text.trim_start_matches(cut),
        "rstrip" => text.trim_end_matches(cut),
        _ => text.trim_matches(cut),
    };
    Ok(run.origins.part(&piece.part(stripped)))
}

/// `split` and `rsplit`.
fn split_call(run: &Run, piece: &Piece<'_>, name: &str, args: &[Value]) -> Result<Value, Error> {
    let text = piece.text;
    let (args, kwargs) = arguments(args)?;
    let pick = |at: usize, name: &str| match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let (sep, most) = (pick(0, "sep")?, pick(1, "maxsplit")?);
    kwargs.assert_all_used()?;
    let sep = sep.filter(|sep| !sep.is_none());
    if sep.as_ref().is_some_and(|sep| sep.as_str().is_none()) {
        return Err(invalid("split: the separator must be a string"));
    }
    let most = most.map(i64::try_from).transpose()?.and_then(|most| usize::try_from(most).ok());
    let (sep, most) = (sep.as_ref().and_then(Value::as_str), most.unwrap_or(usize::MAX));
    let cuts = match sep {
        Some(sep) => text.matches(sep).count(),
        None => text.matches(is_space).count(),
    };
    run.meter.charge_elements(cuts.min(most).saturating_add(1))?;
    let parts = split(text, sep, most, name == "rsplit")?;
    Ok(parts.into_iter().map(|part| run.origins.part(&piece.part(part))).collect())
}

fn split_lines(run: &Run, piece: &Piece<'_>, args: &[Value]) -> Result<Value, Error> {
    let text = piece.text;
    let (keep,): (Option<bool>,) = from_args(args)?;
    run.meter.charge_elements(text.matches('\n').count())?;
    let bare = |line: &'_ str| -> usize {
        let line = line.strip_suffix('\n').unwrap_or(line);
        line.strip_suffix('\r').unwrap_or(line).len()
    };
    let lines = text.split_inclusive('\n');
    let lines = lines.map(|line| if keep == Some(true) { line } else { &line[..bare(line)] });
    Ok(lines.map(|line| run.origins.part(&piece.part(line))).collect())
}

fn join(run: &Run, piece: &Piece<'_>, args: &[Value]) -> Result<Value, Error> {
    let (values,): (Value,) = from_args(args)?;
    let mut out = Traced::default();
    for (i, value) in elements(run, &values)?.iter().enumerate() {
        let part = run
            .origins
            .piece(value)
            .ok_or_else(|| invalid(format!("join: expected string, {} found", value.kind())))?;
        run.meter.charge(part.text.len() + piece.text.len())?;
        if i > 0 {
            out.push(piece);
        }
        out.push(&part);
    }
    Ok(run.origins.value(out))
}

/// `title`, `swapcase` and `casefold`.
fn case(name: &str, text: &str) -> String {
    match name {
        "title" => {
            let mut inside = false;
            let mut out = String::new();
            for c in text.chars() {
                if inside {
                    out.extend(c.to_lowercase())
                } else {
                    out.extend(c.to_uppercase())
                }
                inside = c.is_alphabetic();
            }
            out
        }
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            text.chars().map(swap).collect()
        }
        _ => text.to_lowercase(),
    }
}

/// `partition` and `rpartition`.
fn partition(run: &Run, piece: &Piece<'_>, name: &str, args: &[Value]) -> Result<Value, Error> {
    let text = piece.text;
    let (sep,): (&str,) = from_args(args)?;
    if sep.is_empty() {
        return Err(invalid("empty separator"));
    }
    let parts = match name {
        "partition" => text.split_once(sep),
        _ => text.rsplit_once(sep),
    };
    let (start, end) = (&text[..0], &text[text.len()..]);
    let three = match parts {
        Some((before, after)) => [before, &text[before.len()..text.len() - after.len()], after],
        None if name == "partition" => [text, end, end],
        None => [start, start, text],
    };
    Ok(Value::from(Tuple::from(three.map(|part| run.origins.part(&piece.part(part))))))
}

/// `center`, `ljust`, `rjust` and `zfill`.
fn pad(run: &Run, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<String>) = from_args(args)?;
    let missing = width.saturating_sub(text.chars().count());
    let fill = if name == "zfill" { "0".into() } else { fill.unwrap_or_else(|| " ".into()) };
    run.meter.charge(missing.saturating_mul(fill.len()))?;
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    Ok(Value::from(fill.repeat(left) + text + &fill.repeat(missing - left)))
}

/// `str.isspace` of one character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `text.replace(old, new, count)`.
pub(super) fn replace(
    run: &Run,
    piece: &Piece<'_>,
    old: &str,
    new: &Piece<'_>,
    count: Option<i64>,
) -> Result<Traced, Error> {
    let text = piece.text;
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let spans = new.spans.len().saturating_mul(2 * size_of::<usize>());
    run.meter.charge(found.min(most).saturating_mul(new.text.len() + spans).saturating_add(text.len()))?;
    let mut out = Traced::default();
    let mut rest = 0;
    for (at, matched) in text.match_indices(old).take(most) {
        out.push(&piece.part(&text[rest..at]));
        out.push(new);
        rest = at + matched.len();
    }
    out.push(&piece.part(&text[rest..]));
    Ok(out)
}

/// `str.split` and `str.rsplit`: at most `most` cuts, at whitespace if there is no separator.
fn split<'t>(text: &'t str, sep: Option<&str>, most: usize, from_right: bool) -> Result<Vec<&'t str>, Error> {
    let parts = most.saturating_add(1);
    let mut out: Vec<&'t str> = match (sep, from_right) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(sep), false) => text.splitn(parts, sep).collect(),
        (Some(sep), true) => text.rsplitn(parts, sep).collect(),
        (None, _) => {
            let mut words = Vec::new();
            let trim = |text: &str| -> (usize, usize) {
                let start = text.len() - text.trim_start_matches(is_space).len();
                (start, text.trim_end_matches(is_space).len().max(start))
            };
            let (start, end) = trim(text);
            let mut rest = text.get(start..end).unwrap_or_default();
            while !rest.is_empty() {
                let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let Some(at) = cut.filter(|_| words.len() < most) else {
                    words.push(rest);
                    break;
                };
                let (left, right) = rest.split_at(at);
                if from_right {
                    words.push(right.trim_start_matches(is_space));
                    rest = left.trim_end_matches(is_space);
                } else {
                    words.push(left);
                    rest = right.trim_start_matches(is_space);
                }
            }
            words
        }
    };
    if from_right {
        out.reverse();
    }
    Ok(out)
}
