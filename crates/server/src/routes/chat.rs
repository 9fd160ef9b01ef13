//! `/v1/chat/completions`: a conversation in, the assistant's next message out.

mod reply;

use serde_json::Value;

use self::reply::{Reply, ReplyContents};
use super::deliver::Prepared;
use crate::Config;
use crate::generation::scoring::Scoring;
use crate::http::error::{ApiError, Result};
use crate::request::chat_request::{ChatJob, ChatRequest};
use crate::request::constraint;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::options::{Options, Streaming, refuse_streamed, unparsed};
use crate::request::params::Params;
use crate::request::prepare::Preparation;
use crate::request::prompt::{Chat, model_or_adapter};

/// Parameters that are not supported, and why.
const REFUSED: &[(&str, &str)] = &[
    ("audio", "audio output is not supported"),
    ("function_call", "no longer part of the API, use tool_choice"),
    ("functions", "no longer part of the API, use tools"),
    ("suffix", "a chat has none, use /v1/completions or /infill"),
    ("web_search_options", "web search is not supported"),
];

/// Validates a request and does all its work that precedes the engine.
pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Prepared<Reply>> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, unparsed(config))?.naming(preparation.images);
    let model = model_or_adapter(&mut params, served)?;
    let chat = Chat::take(&mut params, served, config)?;
    let mut options = Options::take(&mut params, served, config, &model)?;
    options.sampling.logprobs = logprobs(&mut params, config)?;
    let grammar = constraint::take(&mut params)?;
    options.scoring.prompt_logprobs = Scoring::take_prompt_logprobs(&mut params, config)?;
    let streaming = Streaming::take(&mut params)?;
    refuse_streamed(options.scoring.prompt_logprobs, streaming)?;
    modalities(&mut params)?;
    let prediction = prediction(&mut params)?;
    params.finish(Object::Body, REFUSED)?;

    if let Some(text) = prediction {
        options.predicted = Encoder::new(served, cancel, "prediction").plain(&text)?.into();
    }
    let (logprobs, token_ids) = (options.sampling.logprobs.is_some(), options.token_ids);
    let request = ChatRequest { chat, options, grammar, truncate: false };
    let ChatJob { job, prompt } = request.job(&Encoder::new(served, cancel, "messages"))?;
    let contents = ReplyContents { logprobs, streaming: streaming.unwrap_or_default() };
    let shape = Reply::new(model, contents, token_ids.then_some(prompt));
    Ok(Prepared { job, shape, stream: streaming.is_some() })
}

fn logprobs(params: &mut Params, config: &Config) -> Result<Option<usize>> {
    let top = params.integer("top_logprobs", 0, config.max_top_logprobs as i64)?;
    match (params.bool("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::bad("top_logprobs", "top_logprobs: requires logprobs to be true")),
    }
}

/// A text that the answer is expected to repeat.
fn prediction(params: &mut Params) -> Result<Option<String>> {
    let Some(mut prediction) = params.object("prediction")? else { return Ok(None) };
    let kind = prediction.required_string("type")?;
    if kind != "content" {
        return Err(ApiError::bad(
            "prediction.type",
            format!("prediction.type: want \"content\", got {kind:?}"),
        ));
    }
    let text = match prediction.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                _ => {
                    Err(ApiError::expected("prediction.content", "a string or an array of text parts", part))
                }
            };
            parts.iter().map(text).collect::<Result<String>>()?
        }
        Some(other) => {
            return Err(ApiError::expected(
                "prediction.content",
                "a string or an array of text parts",
                &other,
            ));
        }
        None => return Err(prediction.missing("content")),
    };
    prediction.finish(Object::Body, &[])?;
    Ok(Some(text))
}

fn modalities(params: &mut Params) -> Result<()> {
    match params.array("modalities")? {
        Some(kinds) if kinds.iter().any(|kind| kind != "text") => {
            Err(ApiError::bad("modalities", "modalities: only \"text\" is supported"))
        }
        _ => Ok(()),
    }
}
