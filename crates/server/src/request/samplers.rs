//! Parameters of the samplers beyond temperature, top-k, top-p and min-p, under the names of llama.cpp and Ollama.

use std::sync::Arc;

use tern::Model;
use tern::engine::{Breakers, Dry, Mirostat, MirostatVersion, Sampling, Xtc};

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::request::params::Params;

/// The largest value of parameters without an upper bound.
const LARGE: f64 = 1e6;

/// Sets the samplers that a request has, over `base`.
pub(crate) fn take(
    params: &mut Params,
    served: &ServedModel,
    config: &Config,
    base: Sampling,
) -> Result<Sampling> {
    let defaults = &served.defaults;
    let xtc = defaults.xtc;
    Ok(Sampling {
        // llama.cpp's clients send -1 for none
        top_n_sigma: params.number("top_n_sigma", -1.0, LARGE)?.map_or(defaults.top_n_sigma, |n| n.max(0.0)),
        typical_p: params.number("typical_p", 0.0, 1.0)?.unwrap_or(defaults.typical_p),
        xtc: Xtc {
            probability: params.number("xtc_probability", 0.0, 1.0)?.unwrap_or(xtc.probability),
            threshold: params.number("xtc_threshold", 0.0, 1.0)?.unwrap_or(xtc.threshold),
        },
        dry: dry(params, served, config)?,
        mirostat: mirostat(params, defaults.mirostat)?,
        ..base
    })
}

fn dry(params: &mut Params, served: &ServedModel, config: &Config) -> Result<Dry> {
    let defaults = &served.defaults.dry;
    let multiplier = params.number("dry_multiplier", 0.0, LARGE)?.unwrap_or(defaults.multiplier);
    let base = params.number("dry_base", 1.0, LARGE)?.unwrap_or(defaults.base);
    let allowed = params.integer("dry_allowed_length", 0, i64::MAX)?;
    let last_n = params.integer("dry_penalty_last_n", -1, i64::MAX)?;
    let texts = breaker_texts(params, config)?;
    let mut dry = Dry {
        multiplier,
        base,
        allowed_length: allowed.map_or(defaults.allowed_length, |length| length as usize),
        // -1 is the whole text
        last_n: last_n.map_or(defaults.last_n, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        breakers: Arc::clone(&defaults.breakers),
    };
    if dry.is_on() {
        dry.breakers = breakers(served, texts, dry.breakers);
    }
    Ok(dry)
}

/// The request's, otherwise the server's, otherwise the usual ones.
fn breakers(served: &ServedModel, texts: Option<Vec<String>>, defaults: Arc<Breakers>) -> Arc<Breakers> {
    match texts {
        Some(texts) => served.model.breakers(texts.iter().map(String::as_str)),
        None if defaults.count() > 0 => defaults,
        None => served.model.breakers(Model::BREAKERS),
    }
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

fn mirostat(params: &mut Params, default: Option<Mirostat>) -> Result<Option<Mirostat>> {
    if params.peek("mirostat_mode").is_some() {
        params.rename("mirostat_mode", "mirostat"); // its name in text-generation-webui and KoboldCpp
    }
    let version = match params.integer("mirostat", 0, 2)? {
        None => default.map(|mirostat| mirostat.version),
        Some(0) => None,
        Some(1) => Some(MirostatVersion::One),
        Some(_) => Some(MirostatVersion::Two),
    };
    let tau = params.number("mirostat_tau", 0.0, LARGE)?;
    let eta = params.number("mirostat_eta", 0.0, 1.0)?;
    Ok(version.map(|version| Mirostat {
        version,
        tau: tau.or(default.map(|mirostat| mirostat.tau)).unwrap_or(Mirostat::TAU),
        eta: eta.or(default.map(|mirostat| mirostat.eta)).unwrap_or(Mirostat::ETA),
    }))
}
