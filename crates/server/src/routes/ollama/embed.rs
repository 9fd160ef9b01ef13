//! `/api/embed`, and the older `/api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use tern::engine::Request;

use super::super::embeddings::{shorten, text_requests, vectors};
use super::parameters;
use super::take_name;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::params::Params;
use crate::request::prepare::{Preparation, Prepare};
use crate::request::prompt::model_name;
use crate::state::App;

/// Texts to embed.
struct EmbedRequest {
    model: String,
    requests: Vec<Request>,
    dimensions: Option<usize>,
}

/// The embeddings of a request.
struct Embedded {
    model: String,
    vectors: Vec<Vec<f32>>,
    prompt_tokens: usize,
}

pub(in super::super) async fn embed(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let start = Instant::now();
    let Embedded { model, vectors, prompt_tokens } = embedded(&app, &log, body, inputs).await?;
    let total = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(super::super::json(&json!({
        "model": model, "embeddings": vectors, "total_duration": total, "load_duration": 0,
        "prompt_eval_count": prompt_tokens,
    })))
}

pub(in super::super) async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let mut embedded = embedded(&app, &log, body, prompt).await?;
    Ok(super::super::json(&json!({"embedding": embedded.vectors.pop().unwrap_or_default()})))
}

async fn embedded(
    app: &App,
    log: &RequestLog,
    body: Body,
    prepare: Prepare<EmbedRequest>,
) -> Result<Embedded> {
    let (served, request) = app.prepare(log, body, prepare).await?;
    let prompt_tokens: usize = request.requests.iter().map(|request| request.prompt.len()).sum();
    let mut vectors = vectors(app, &served, log, request.requests).await?;
    shorten(&mut vectors, request.dimensions)?;
    Ok(Embedded { model: request.model, vectors, prompt_tokens })
}

fn inputs(preparation: &Preparation<'_>) -> Result<EmbedRequest> {
    let given = |params: &mut Params| match params.take("input") {
        None => Err(params.missing("input")),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(items)) => {
            let text = |item: Value| match item {
                Value::String(text) => Ok(text),
                other => Err(ApiError::expected("input", "a string or an array of strings", &other)),
            };
            items.into_iter().map(text).collect()
        }
        Some(other) => Err(ApiError::expected("input", "a string or an array of strings", &other)),
    };
    take(preparation, "input", given)
}

fn prompt(preparation: &Preparation<'_>) -> Result<EmbedRequest> {
    take(preparation, "prompt", |params| Ok(vec![params.required_string("prompt")?]))
}

fn take(
    preparation: &Preparation<'_>,
    param: &'static str,
    texts: impl FnOnce(&mut Params) -> Result<Vec<String>>,
) -> Result<EmbedRequest> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, parameters::unparsed(config))?;
    take_name(&mut params);
    let model = model_name(&mut params, served)?;
    let texts = texts(&mut params)?;
    if texts.is_empty() || texts.len() > config.max_inputs {
        return Err(ApiError::too_many(param, texts.len(), config.max_inputs, "inputs"));
    }
    let truncate = params.bool("truncate")?.unwrap_or(true);
    let dimensions = params.integer("dimensions", 1, i64::MAX)?.map(|d| d as usize);
    parameters::keep_alive(&mut params)?;
    params.take("options");
    params.finish(Object::Body, &[])?;
    let requests = text_requests(&texts, &Encoder::of_texts(served, cancel, param), truncate)?;
    Ok(EmbedRequest { model, requests, dimensions })
}
