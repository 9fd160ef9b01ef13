//! The parameters of Ollama's API: `options`, `format` and `keep_alive`.

use std::time::Duration;

use serde_json::{Map, Value};
use tern::grammar::Grammar;

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::request::constraint::RequestedGrammar;
use crate::request::ignored::Object;
use crate::request::json::integer;
use crate::request::options::{self, Options};
use crate::request::params::{Params, Unparsed};

/// Options that are not supported, and why.
const REFUSED: &[(&str, &str)] =
    &[("n", "a request has one answer"), ("tfs_z", "tail-free sampling is not supported")];

/// How bodies are parsed.
pub(super) fn unparsed(config: &Config) -> Unparsed {
    Unparsed { kept: &["keep_alive"], ..options::unparsed(config) }
}

/// How long a model stays loaded after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepAlive {
    /// As the server is configured.
    Default,
    For(Duration),
    Forever,
}

impl KeepAlive {
    /// Whether the model is unloaded at once.
    pub(super) fn is_zero(self) -> bool {
        matches!(self, KeepAlive::For(time) if time.is_zero())
    }
}

/// `options`, in the terms of the other APIs.
pub(super) fn options(
    params: &mut Params,
    served: &ServedModel,
    config: &Config,
    model: &str,
) -> Result<Options> {
    let mut options = match params.object("options")? {
        Some(options) => options,
        None => params.nested(Value::Object(Map::new()), "options")?,
    };
    // -2 fills the context
    if options.peek("num_predict").and_then(integer) == Some(-2) {
        options.take("num_predict");
    }
    options.rename("num_predict", "max_tokens");
    // 1 is off, as in presets of older versions
    if options.peek("tfs_z").and_then(Value::as_f64) == Some(1.0) {
        options.take("tfs_z");
    }
    let refused = ["n"].into_iter().find(|name| options.peek(name).is_some_and(|n| integer(n) != Some(1)));
    if let Some(name) = refused {
        return Err(ApiError::bad(options.name(name), "options.n: a request has one answer"));
    }
    let mut taken = Options::take(&mut options, served, config, model)?;
    options.finish(Object::OllamaOptions, REFUSED)?;
    let top = params.integer("top_logprobs", 0, config.max_top_logprobs as i64)?;
    if params.bool("logprobs")?.unwrap_or(false) {
        taken.sampling.logprobs = Some(top.unwrap_or(0) as usize);
    }
    Ok(taken)
}

/// `format`: `"json"` or a schema.
pub(super) fn format(params: &mut Params) -> Result<Option<RequestedGrammar>> {
    let grammar = match params.take("format") {
        None => return Ok(None),
        Some(Value::String(word)) if word.is_empty() => return Ok(None),
        Some(Value::String(word)) if word == "json" => Grammar::JsonObject,
        Some(schema @ Value::Object(_)) => Grammar::JsonSchema(schema),
        Some(other) => return Err(ApiError::expected("format", "\"json\" or a JSON schema", &other)),
    };
    Ok(Some(RequestedGrammar { grammar, param: "format" }))
}

/// `keep_alive`: seconds, or a duration such as `5m`; a negative one is forever.
pub(super) fn keep_alive(params: &mut Params) -> Result<KeepAlive> {
    keep_alive_of(params.take("keep_alive").as_ref())
}

pub(super) fn keep_alive_of(given: Option<&Value>) -> Result<KeepAlive> {
    let seconds = match given {
        None => return Ok(KeepAlive::Default),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => duration(text),
        Some(_) => None,
    };
    let expected = "seconds, or a duration such as \"5m\"";
    let wrong = || ApiError::expected("keep_alive", expected, &given.cloned().unwrap_or_default());
    match seconds.ok_or_else(wrong)? {
        seconds if seconds < 0.0 => Ok(KeepAlive::Forever),
        seconds => Duration::try_from_secs_f64(seconds).map(KeepAlive::For).map_err(|_| wrong()),
    }
}

/// The seconds of a duration as Go writes it: `1h30m`, `45s`, `500ms`, or a number.
fn duration(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units = [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
        let (unit, seconds) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        total += number * seconds;
        rest = &rest[unit.len()..];
    }
    Some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, want) in [
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("1.5s", Some(1.5)),
            ("250ms", Some(0.25)),
            ("-1", Some(-1.0)),
            ("-1m", Some(-60.0)),
            ("300", Some(300.0)),
            ("5 minutes", None),
            ("m", None),
            ("5", Some(5.0)),
        ] {
            assert_eq!(duration(text), want, "{text}");
        }
    }
}
