//! The sampling parameters of a request: those of the engine's table, and the breakers of DRY.

use std::sync::Arc;

use tern::Model;
use tern::engine::{Breakers, Sampling};
use tern::graph::{PARAMETERS, Parameter, Range};

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::request::params::Params;

/// Sets the parameters that a request has.
pub(crate) fn take(params: &mut Params, sampling: &mut Sampling) -> Result<()> {
    for parameter in PARAMETERS {
        if let Some(value) = value(params, parameter)? {
            (parameter.set)(sampling, value);
        }
    }
    Ok(())
}

/// The value of a parameter, under its own name or that of another program, which goes first.
fn value(params: &mut Params, parameter: &Parameter) -> Result<Option<f64>> {
    let mut found = None;
    for name in [parameter.name].iter().chain(parameter.aliases) {
        let given = match parameter.range {
            Range::Number { low, high } => params.number(name, low, high)?.map(f64::from),
            Range::Integer { low, high } => params.integer(name, low, high)?.map(|value| value as f64),
        };
        found = given.or(found);
    }
    Ok(found)
}

/// What ends a repetition: the request's, otherwise the server's, otherwise the usual ones.
pub(crate) fn breakers(
    params: &mut Params,
    served: &ServedModel,
    config: &Config,
    sampling: &Sampling,
) -> Result<Arc<Breakers>> {
    let texts = breaker_texts(params, config)?;
    let defaults = Arc::clone(&served.defaults.dry.breakers);
    Ok(match texts {
        _ if !sampling.dry.is_on() => defaults,
        Some(texts) => served.model.breakers(texts.iter().map(String::as_str)),
        None if defaults.count() > 0 => defaults,
        None => served.model.breakers(Model::BREAKERS),
    })
}

fn breaker_texts(params: &mut Params, config: &Config) -> Result<Option<Vec<String>>> {
    const NAME: &str = "dry_sequence_breakers";
    let Some(texts) = params.array(NAME)? else { return Ok(None) };
    if texts.len() > config.max_stops {
        return Err(ApiError::too_many(NAME, texts.len(), config.max_stops, "strings"));
    }
    let text = |text: &serde_json::Value| match text.as_str() {
        Some(text) if !text.is_empty() && text.len() <= config.max_stop_bytes => Ok(text.to_owned()),
        _ => Err(ApiError::expected(NAME, "an array of strings that are not empty", text)),
    };
    texts.iter().map(text).collect::<Result<_>>().map(Some)
}
