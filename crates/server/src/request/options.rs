//! The parameters that chat and text completions share: sampling, stops, length, streaming.

use std::sync::Arc;

use serde_json::Value;
use tern::engine::Sampling;
use tern::graph::BIAS;
use tern::{AdapterScales, TokenRules};

use crate::Config;
use crate::generation::delta::{Report, TokenNames};
use crate::generation::scoring::Scoring;
use crate::generation::usage::Usage;
use crate::http::error::{ApiError, Result};
use crate::ids::random;
use crate::models::model::ServedModel;
use crate::request::adapters;
use crate::request::clients;
use crate::request::ignored::Object;
use crate::request::json::integer;
use crate::request::params::{Params, Unparsed, tokens};
use crate::request::samplers;

/// How the bodies of requests are parsed.
pub(crate) fn unparsed(config: &Config) -> Unparsed {
    let unknown = config.unknown_parameters;
    Unparsed { ignored: Object::Body.ignored(), kept: clients::NAMES, unknown, ..Unparsed::default() }
}

/// Parameters of other servers, with the only value that is supported.
const ONLY: &[(&str, bool)] = &[
    ("include_reasoning", true),
    ("include_stop_str_in_output", false),
    ("separate_reasoning", true),
    ("skip_special_tokens", true),
    ("use_beam_search", false),
];

/// The shared parameters of a request.
pub(crate) struct Options {
    /// Choices per prompt.
    pub(crate) n: usize,
    pub(crate) max_tokens: Option<usize>,
    /// With the seed of the first choice.
    pub(crate) sampling: Sampling,
    pub(crate) stops: Vec<String>,
    pub(crate) end_tokens: Arc<[u32]>,
    /// Number of last tokens that penalties look at; without it all.
    pub(crate) penalty_window: Option<usize>,
    /// A minimum length and excluded words.
    pub(crate) rules: TokenRules,
    /// The client's user, for fairness.
    pub(crate) user: Option<String>,
    pub(crate) priority: i32,
    /// Token ids are returned along with the text.
    pub(crate) token_ids: bool,
    pub(crate) token_names: TokenNames,
    /// What is reported of the prompts; set by routes that can.
    pub(crate) scoring: Scoring,
    pub(crate) adapters: AdapterScales,
    /// Tokens that a step may guess at most.
    pub(crate) drafts: usize,
}

/// How a reply is streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// A last chunk contains the usage.
    pub(crate) usage: bool,
    /// Every chunk contains the usage so far.
    pub(crate) usage_always: bool,
}

impl Options {
    /// Takes the options of a request for this model or adapter.
    pub(crate) fn take(
        params: &mut Params,
        served: &ServedModel,
        config: &Config,
        model: &str,
    ) -> Result<Options> {
        take_ollama_options(params)?;
        for (name, only) in ONLY {
            if params.bool(name)?.is_some_and(|value| value != *only) {
                return Err(ApiError::bad(*name, format!("{name}: only {only} is supported")));
            }
        }
        let n = params.integer("n", 1, config.max_choices as i64)?.unwrap_or(1) as usize;
        if params.integer("best_of", 1, i64::MAX)?.is_some_and(|best| best as usize != n) {
            return Err(ApiError::bad("best_of", "best_of: must be equal to n"));
        }
        let max_tokens = length(params)?;
        let min_tokens = params.integer("min_tokens", 0, i64::MAX)?.unwrap_or(0) as usize;
        // a fixed length: end tokens must not end the sequence earlier
        let fixed_length = min_tokens > 0 && Some(min_tokens) == max_tokens;
        let min_tokens = if fixed_length { 0 } else { min_tokens };
        Ok(Options {
            n,
            max_tokens,
            sampling: sampling(params, served, config)?,
            stops: stops(params, config)?,
            end_tokens: end_tokens(params, served, fixed_length)?,
            // -1 is all
            penalty_window: params
                .integer("repeat_last_n", -1, i64::MAX)?
                .and_then(|n| usize::try_from(n).ok()),
            rules: TokenRules {
                min_tokens,
                bad_words: bad_words(params, served, config)?,
                ..TokenRules::default()
            },
            user: clients::name(params),
            priority: params.integer("priority", i32::MIN.into(), i32::MAX.into())?.unwrap_or(0) as i32,
            token_ids: params.bool("return_token_ids")?.unwrap_or(false),
            token_names: match params.bool("return_tokens_as_token_ids")? {
                Some(true) => TokenNames::Ids,
                _ => TokenNames::Texts,
            },
            scoring: Scoring::default(),
            adapters: adapters::take(params, served, model)?,
            drafts: drafts(params, served)?,
        })
    }

    /// What is reported of the tokens of the text.
    pub(crate) fn report(&self) -> Report {
        let Options { token_ids, token_names, .. } = *self;
        Report { logprobs: self.sampling.logprobs, token_ids, token_names }
    }

    /// The sampling parameters of one choice of a prompt; each choice has its own reproducible seed.
    pub(crate) fn sampling(&self, choice: usize) -> Sampling {
        let seed = self.sampling.seed.wrapping_add(choice as u64);
        Sampling { seed, ..self.sampling.clone() }
    }
}

/// The members of `options`, in which Ollama's clients send parameters, are parameters unless
/// the body has them itself.
fn take_ollama_options(params: &mut Params) -> Result<()> {
    let Some(options) = params.object("options")? else { return Ok(()) };
    for (name, value) in options.into_map() {
        let name = if name == "num_predict" { "max_tokens" } else { name.as_str() };
        if !Object::OllamaOptions.ignored().contains(&name) {
            params.add(name, value);
        }
    }
    Ok(())
}

/// `max_completion_tokens` is the newer name.
fn length(params: &mut Params) -> Result<Option<usize>> {
    let mut length = |name| match params.take(name) {
        Some(given) if integer(&given) == Some(-1) => Ok(None), // llama.cpp's clients: no limit
        given => params.check_integer(name, given, 1, i64::MAX),
    };
    let (old, new) = (length("max_tokens")?, length("max_completion_tokens")?);
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let message = format!(
                "max_completion_tokens: {new} differs from max_tokens, which is {old}; set one of them"
            );
            Err(ApiError::bad("max_completion_tokens", message))
        }
        (old, new) => Ok(new.or(old).map(|tokens| tokens as usize)),
    }
}

/// The sampling parameters of a request, over those of the model.
fn sampling(params: &mut Params, served: &ServedModel, config: &Config) -> Result<Sampling> {
    let mut sampling = Sampling {
        bias: logit_bias(params, config)?,
        seed: params.integer("seed", i64::MIN, i64::MAX)?.map_or_else(random, |seed| seed as u64),
        ..served.defaults.clone()
    };
    samplers::take(params, &mut sampling)?;
    sampling.dry.breakers = samplers::breakers(params, served, config, &sampling)?;
    Ok(sampling)
}

fn logit_bias(params: &mut Params, config: &Config) -> Result<Vec<(u32, f32)>> {
    let Some(bias) = params.object("logit_bias")? else { return Ok(vec![]) };
    let bias = bias.into_map();
    if bias.len() > config.max_logit_bias {
        return Err(ApiError::too_many("logit_bias", bias.len(), config.max_logit_bias, "entries"));
    }
    let entry = |(token, by): (String, Value)| {
        let expected = format!("token ids mapped to numbers from {BIAS}");
        let id = token.parse().map_err(|_| ApiError::expected("logit_bias", &expected, &token.into()))?;
        match by.as_f64() {
            Some(by) if BIAS.contains(by) => Ok((id, by as f32)),
            _ => Err(ApiError::expected("logit_bias", expected, &by)),
        }
    };
    bias.into_iter().map(entry).collect()
}

fn stops(params: &mut Params, config: &Config) -> Result<Vec<String>> {
    let name = params.name("stop");
    let stops = match params.take("stop") {
        None => vec![],
        Some(Value::Array(stops)) => stops,
        Some(one) => vec![one],
    };
    if stops.len() > config.max_stops {
        return Err(ApiError::too_many(&name, stops.len(), config.max_stops, "strings"));
    }
    let stop = |stop: Value| match stop {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::bad(&*name, format!("{name}: strings must not be empty")))
        }
        Value::String(text) if text.len() > config.max_stop_bytes => {
            Err(ApiError::too_many(&name, text.len(), config.max_stop_bytes, "bytes in a string"))
        }
        Value::String(text) => Ok(text),
        other => Err(ApiError::expected(&name, "a string or an array of strings", &other)),
    };
    stops.into_iter().map(stop).collect()
}

/// `bad_words`: each as it is encoded at the start of a text and after a space.
fn bad_words(params: &mut Params, served: &ServedModel, config: &Config) -> Result<Arc<[Vec<u32>]>> {
    let words = params.array("bad_words")?.unwrap_or_default();
    if words.len() > config.max_stops {
        return Err(ApiError::too_many("bad_words", words.len(), config.max_stops, "words"));
    }
    let mut sequences = Vec::new();
    for word in &words {
        let word = match word.as_str() {
            Some(text) if !text.trim().is_empty() && text.len() <= config.max_stop_bytes => text,
            _ => return Err(ApiError::expected("bad_words", "an array of words", word)),
        };
        for text in [word.to_owned(), format!(" {}", word.trim_start())] {
            sequences.push(served.model.tokenizer().encode(&text, false, false));
        }
    }
    sequences.sort();
    sequences.dedup();
    Ok(sequences.into())
}

/// The tokens that end a sequence: the model's and the request's.
fn end_tokens(params: &mut Params, served: &ServedModel, fixed_length: bool) -> Result<Arc<[u32]>> {
    let more = params.array("stop_token_ids")?.unwrap_or_default();
    if more.len() > 1024 {
        return Err(ApiError::too_many("stop_token_ids", more.len(), 1024, "tokens"));
    }
    let more = tokens(&more, "stop_token_ids")?;
    let ignore_eos = params.bool("ignore_eos")?.unwrap_or(false) || fixed_length;
    if more.is_empty() && !ignore_eos {
        return Ok(Arc::clone(served.model.end_tokens()));
    }
    let own = served.model.end_tokens().iter().copied().filter(|_| !ignore_eos);
    Ok(own.chain(more).collect())
}

/// llama.cpp's name of the number of drafts; 0 disables them.
fn drafts(params: &mut Params, served: &ServedModel) -> Result<usize> {
    let requested = params.integer("speculative.n_max", 0, i64::MAX)?;
    Ok(served.model.drafts(requested.map(|most| most as usize)))
}

/// `prompt_logprobs` are part of whole replies only.
pub(crate) fn refuse_streamed(prompt_logprobs: Option<usize>, streaming: Option<Streaming>) -> Result<()> {
    match (prompt_logprobs, streaming) {
        (Some(_), Some(_)) => {
            Err(ApiError::bad("prompt_logprobs", "prompt_logprobs: cannot be combined with stream"))
        }
        _ => Ok(()),
    }
}

impl Streaming {
    /// The usage in a chunk with a piece of text: absent, null or set.
    pub(crate) fn usage_of_piece(self, usage: Usage) -> Option<Option<Usage>> {
        self.usage.then(|| self.usage_always.then_some(usage))
    }

    /// None if the reply is not streamed.
    pub(crate) fn take(params: &mut Params) -> Result<Option<Streaming>> {
        let stream = params.bool("stream")?.unwrap_or(false);
        let Some(mut options) = params.object("stream_options")? else {
            return Ok(stream.then(Streaming::default));
        };
        let usage_always = options.bool("continuous_usage_stats")?.unwrap_or(false);
        let usage = options.bool("include_usage")?.unwrap_or(false);
        options.finish(Object::StreamOptions, &[])?;
        Ok(stream.then_some(Streaming { usage, usage_always: usage && usage_always }))
    }
}
