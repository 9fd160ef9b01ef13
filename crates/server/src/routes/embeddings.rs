//! `/v1/embeddings`: the model's hidden states, pooled and normalized to length one.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use serde_json::{Value, json};
use tern::engine::{Event, Request};
use tern::{Pooling, Reranker};

use super::results::results;

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::model::ServedModel;
use crate::request::adapters;
use crate::request::clients;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::{Params, Unparsed};
use crate::request::prepare::Preparation;
use crate::request::prompt::model_or_adapter;
use crate::request::text_lists::{Listed, Text};
use crate::state::App;

struct Job {
    model: String,
    requests: Vec<Request>,
    base64: bool,
    dimensions: Option<usize>,
}

pub(super) async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (served, job) = app.prepare(&log, body, prepare).await?;
    let prompt_tokens: usize = job.requests.iter().map(|request| request.prompt.len()).sum();
    let mut vectors = vectors(&app, &served, &log, job.requests).await?;
    shorten(&mut vectors, job.dimensions)?;
    let base64 = job.base64;
    let data: Vec<Value> = (0..).zip(&vectors).map(|(index, vector)| entry(index, vector, base64)).collect();
    Ok(super::json(&json!({
        "object": "list",
        "data": data,
        "model": job.model,
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    })))
}

fn entry(index: usize, vector: &[f32], base64: bool) -> Value {
    let embedding = if base64 { in_base64(vector).into() } else { json!(vector) };
    json!({"object": "embedding", "index": index, "embedding": embedding})
}

/// A vector as the bytes of its floats, little-endian.
pub(super) fn in_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The vectors of requests, normalized to length one.
pub(super) async fn vectors(
    app: &App,
    served: &ServedModel,
    log: &RequestLog,
    requests: Vec<Request>,
) -> Result<Vec<Vec<f32>>> {
    let take = |before, event: Event| match event {
        Event::Embedding(vector) => Some(tern::normalized(vector)),
        _ => before,
    };
    results(app, served, log, requests, 1, take).await
}

/// Shortens vectors to the requested number of dimensions, as models with nested representations allow, and
/// normalizes them again.
pub(super) fn shorten(vectors: &mut [Vec<f32>], dimensions: Option<usize>) -> Result<()> {
    let Some(requested) = dimensions else { return Ok(()) };
    for vector in vectors {
        let size = vector.len();
        if requested > size {
            let message = format!(
                "dimensions: expected at most {size}, the size of this model's vectors, got {requested}"
            );
            return Err(ApiError::bad("dimensions", message));
        }
        if requested < size {
            vector.truncate(requested);
            *vector = tern::normalized(std::mem::take(vector));
        }
    }
    Ok(())
}

/// Refuses a model that scores pairs instead of texts, or whose pooling leaves a row per token.
pub(super) fn check_embeds(served: &ServedModel) -> Result<()> {
    check_vectors(served)?;
    if served.model.pooling() != Pooling::None {
        return Ok(());
    }
    let why = "with pooling none, this model has a vector per token: use /embedding, or start the server with the pooling \
               mean, cls or last";
    Err(no_embeddings(why))
}

/// Refuses a model that scores pairs instead of texts.
pub(super) fn check_vectors(served: &ServedModel) -> Result<()> {
    match served.model.reranker() {
        Some(Reranker::Classifier | Reranker::TemplateClassifier(_)) => {
            Err(no_embeddings("this model scores pairs of texts: use /v1/rerank or /v1/score"))
        }
        Some(Reranker::Judge { .. }) | None => Ok(()),
    }
}

fn no_embeddings(why: &str) -> ApiError {
    ApiError::bad("model", format!("model: {why}")).code("no_embeddings")
}

/// A request per text, which must not be empty; with `truncate` the end of a text that
/// does not fit is omitted.
pub(super) fn text_requests(texts: &[String], encoder: &Encoder<'_>, truncate: bool) -> Result<Vec<Request>> {
    check_embeds(encoder.served)?;
    let request = |text: &String| {
        let (tokens, param) = (encoder.fitting(text, true, truncate)?, encoder.param);
        match tokens.is_empty() {
            true => Err(ApiError::bad(param, format!("{param}: texts must not be empty"))),
            false => Ok(Request::embed(tokens, encoder.served.model.pooling())),
        }
    };
    texts.iter().map(request).collect()
}

fn prepare(preparation: &Preparation<'_>) -> Result<Job> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let unparsed = Unparsed { listed: &["input"], keep: config.max_inputs, ..unparsed(config) };
    let mut params = Params::parse(body, unparsed)?;
    let model = model_or_adapter(&mut params, served)?;
    let adapters = adapters::take(&mut params, served, &model)?;
    let base64 = match params.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => return Err(ApiError::expected("encoding_format", "float or base64", &other.into())),
    };
    let dimensions = params.integer("dimensions", 1, i64::MAX)?.map(|d| d as usize);
    let priority = params.integer("priority", i32::MIN.into(), i32::MAX.into())?.unwrap_or(0) as i32;
    let client = clients::user(clients::name(&mut params).as_deref());
    let truncate = params.bool("truncate")?.unwrap_or(false);
    let input = params.listed("input")?;
    params.finish(Object::Body, &[])?;
    check_embeds(served)?;
    let inputs = inputs(input, &Encoder::of_texts(served, cancel, "input"), truncate, config)?;
    if let Some(at) = inputs.iter().position(Vec::is_empty) {
        return Err(ApiError::bad("input", format!("input: text {at} must not be empty")));
    }
    let request = |prompt| Request {
        priority,
        client,
        adapters: adapters.clone(),
        ..Request::embed(prompt, served.model.pooling())
    };
    Ok(Job { model, requests: inputs.into_iter().map(request).collect(), base64, dimensions })
}

/// The tokens of each text of a request.
pub(super) fn inputs(
    given: Listed,
    encoder: &Encoder<'_>,
    truncate: bool,
    config: &Config,
) -> Result<Vec<Vec<u32>>> {
    let check = |inputs: usize| match inputs {
        _ if inputs > config.max_inputs => {
            Err(ApiError::too_many("input", inputs, config.max_inputs, "inputs"))
        }
        _ => Ok(()),
    };
    let encode = |text| match text {
        Text::String(text) => encoder.fitting(&text, true, truncate),
        Text::Tokens(ids) if truncate => Ok(encoder.shortened(ids)),
        Text::Tokens(ids) => encoder.tokens(ids),
    };
    given.texts("input", check)?.into_iter().map(encode).collect()
}
