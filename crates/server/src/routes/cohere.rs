//! `/v2/embed` and `/v1/embed`: embeddings in Cohere's shape.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tern::engine::Request;

use super::embeddings::{in_base64, shorten, text_requests, vectors};
use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::ids;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::Params;
use crate::request::prepare::{Preparation, Prepare};
use crate::request::prompt::model_name;
use crate::state::App;

/// The forms of vectors that are supported.
const FORMS: [&str; 2] = ["float", "base64"];

/// What a text is for; the vectors of a local model do not depend on it.
const INPUT_TYPES: [&str; 4] = ["search_document", "search_query", "classification", "clustering"];

struct Job {
    texts: Vec<String>,
    requests: Vec<Request>,
    dimensions: Option<usize>,
    /// The forms of the vectors; without one they are a plain list of floats, as the first version has it.
    forms: Option<Vec<String>>,
    version: &'static str,
}

/// `/v2/embed`
pub(super) async fn embed(app: State<Arc<App>>, log: Extension<RequestLog>, body: Body) -> Result<Response> {
    reply(app, log, body, |preparation| prepare(preparation, "2")).await
}

/// `/v1/embed`
pub(super) async fn embed_v1(
    app: State<Arc<App>>,
    log: Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    reply(app, log, body, |preparation| prepare(preparation, "1")).await
}

async fn reply(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
    prepare: Prepare<Job>,
) -> Result<Response> {
    let (served, job) = app.prepare(&log, body, prepare).await?;
    let input_tokens: usize = job.requests.iter().map(|request| request.prompt.len()).sum();
    let mut vectors = vectors(&app, &served, &log, job.requests).await?;
    shorten(&mut vectors, job.dimensions)?;
    let (kind, embeddings) = match &job.forms {
        None => ("embeddings_floats", json!(vectors)),
        Some(forms) => {
            let form = |form: &String| match form.as_str() {
                "base64" => json!(vectors.iter().map(|vector| in_base64(vector)).collect::<Vec<_>>()),
                _ => json!(vectors),
            };
            let forms: Map<String, Value> = forms.iter().map(|name| (name.clone(), form(name))).collect();
            ("embeddings_by_type", forms.into())
        }
    };
    Ok(super::json(&json!({
        "id": ids::id("embed-"),
        "response_type": kind,
        "embeddings": embeddings,
        "texts": job.texts,
        "meta": {"api_version": {"version": job.version}, "billed_units": {"input_tokens": input_tokens}},
    })))
}

fn prepare(preparation: &Preparation<'_>, version: &'static str) -> Result<Job> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, unparsed(config))?;
    model_name(&mut params, served)?;
    if let Some(kind) = params.string("input_type")?
        && !INPUT_TYPES.contains(&kind.as_str())
    {
        return Err(ApiError::expected("input_type", INPUT_TYPES.join(", "), &kind.into()));
    }
    let texts = texts(&mut params, config)?;
    let forms = forms(&mut params)?.or((version != "1").then(|| vec!["float".to_owned()]));
    let dimensions = params.integer("output_dimension", 1, i64::MAX)?.map(|d| d as usize);
    let truncate = match params.string("truncate")?.as_deref() {
        None | Some("END") => true, // the default of this API
        Some("NONE") => false,
        Some(other) => return Err(ApiError::expected("truncate", "END or NONE", &other.into())),
    };
    let mut encoder = Encoder::of_texts(served, cancel, "texts");
    if let Some(most) = params.integer("max_tokens", 1, i64::MAX)? {
        encoder.max_tokens = encoder.max_tokens.min(most as usize);
    }
    params.finish(Object::Body, &[("images", "only texts are supported")])?;
    let requests = text_requests(&texts, &encoder, truncate)?;
    Ok(Job { texts, requests, dimensions, forms, version })
}

/// `texts`, or the texts of `inputs`, whose contents have one part each.
fn texts(params: &mut Params, config: &Config) -> Result<Vec<String>> {
    let texts = match (params.array("texts")?, params.array("inputs")?) {
        (Some(texts), None) => texts,
        (None, Some(inputs)) => {
            let text = |input: Value| match input.pointer("/content") {
                Some(Value::Array(parts)) if parts.len() == 1 && parts[0]["type"] == "text" => {
                    Ok(parts[0]["text"].clone())
                }
                _ => {
                    let expected =
                        "inputs with one text: {\"content\": [{\"type\": \"text\", \"text\": ...}]}";
                    Err(ApiError::expected("inputs", expected, &input))
                }
            };
            inputs.into_iter().map(text).collect::<Result<_>>()?
        }
        (None, None) => return Err(params.missing("texts")),
        (Some(_), Some(_)) => return Err(ApiError::bad("inputs", "inputs: cannot be combined with texts")),
    };
    if texts.is_empty() || texts.len() > config.max_inputs {
        return Err(ApiError::too_many("texts", texts.len(), config.max_inputs, "texts"));
    }
    let text = |text: Value| match text {
        Value::String(text) => Ok(text),
        other => Err(ApiError::expected("texts", "an array of strings", &other)),
    };
    texts.into_iter().map(text).collect()
}

/// `embedding_types`
fn forms(params: &mut Params) -> Result<Option<Vec<String>>> {
    let form = |form: Value| match form.as_str() {
        Some(name) if FORMS.contains(&name) => Ok(name.to_owned()),
        _ => Err(ApiError::expected("embedding_types", FORMS.join(" or "), &form)),
    };
    params.array("embedding_types")?.map(|forms| forms.into_iter().map(form).collect()).transpose()
}
