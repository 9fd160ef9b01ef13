//! `/v1/embeddings`: the model's hidden states, pooled and normalized to length one.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use serde_json::{Value, json};
use tern::engine::{Event, Request};

use crate::Config;
use crate::access::RequestLog;
use crate::choice_streams::ChoiceStreams;
use crate::encode::Encoder;
use crate::error::{ApiError, Result};
use crate::ignored::Object;
use crate::model::ServedModel;
use crate::options::unparsed;
use crate::params::{Params, Unparsed};
use crate::prepare::Preparation;
use crate::prompt::model_name;
use crate::state::{App, Stop};
use crate::text_lists::{Listed, Text};

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
    let vectors = run_in_time(&app, &served, &log, job.requests).await?;
    if let Some(requested) = job.dimensions
        && let Some(size) = vectors.iter().map(Vec::len).find(|size| *size != requested)
    {
        let message =
            format!("dimensions: expected {size}, the size of this model's vectors, got {requested}");
        return Err(ApiError::bad("dimensions", message));
    }
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
    let embedding = match base64 {
        true => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            base64::engine::general_purpose::STANDARD.encode(bytes).into()
        }
        false => json!(vector),
    };
    json!({"object": "embedding", "index": index, "embedding": embedding})
}

/// The vectors of requests, within the request's deadline.
pub(super) async fn run_in_time(
    app: &App,
    served: &ServedModel,
    log: &RequestLog,
    requests: Vec<Request>,
) -> Result<Vec<Vec<f32>>> {
    log.fields().prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let work = run(app, served, requests);
    let vectors = match app.config.request_timeout {
        None => work.await?,
        Some(limit) => match tokio::time::timeout_at((log.start + limit).into(), work).await {
            Ok(vectors) => vectors?,
            Err(_) => return Err(ApiError::timeout(app.timeout())),
        },
    };
    log.fields().finish = Some("stop");
    Ok(vectors)
}

async fn run(app: &App, served: &ServedModel, requests: Vec<Request>) -> Result<Vec<Vec<f32>>> {
    let mut vectors = vec![vec![]; requests.len()];
    let streams = ChoiceStreams::start(served.model.handle(), requests, 1);
    let mut streams = streams.map_err(|error| app.refusal(error))?;
    let mut stop = std::pin::pin!(app.stopped(Stop::Now));
    loop {
        let event = tokio::select! {
            event = streams.next() => event,
            () = stop.as_mut() => return Err(ApiError::shutting_down()),
        };
        match event {
            None => return Ok(vectors),
            Some((at, Event::Embedding(vector))) => vectors[at] = normalized(vector),
            Some((_, Event::Failed(error))) => return Err(error.into()),
            Some((_, Event::Done(_))) => return Err(ApiError::shutting_down()),
            Some((_, Event::Started { .. } | Event::Token(_))) => {}
        }
    }
}

fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

fn prepare(preparation: &Preparation<'_>) -> Result<Job> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let unparsed = Unparsed { listed: Some("input"), keep: config.max_inputs, ..unparsed(config) };
    let mut params = Params::parse(body, unparsed)?;
    let model = model_name(&mut params, served)?;
    let base64 = match params.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => return Err(ApiError::expected("encoding_format", "float or base64", &other.into())),
    };
    let dimensions = params.integer("dimensions", 1, i64::MAX)?.map(|d| d as usize);
    let priority = params.integer("priority", i32::MIN.into(), i32::MAX.into())?.unwrap_or(0) as i32;
    let input = params.listed("input")?;
    params.finish(Object::Body, &[])?;
    let inputs = inputs(input, &Encoder::new(served, cancel, "input"), config)?;
    if let Some(at) = inputs.iter().position(Vec::is_empty) {
        return Err(ApiError::bad("input", format!("input: text {at} must not be empty")));
    }
    let request = |prompt| Request { priority, ..Request::embed(prompt, served.model.pooling()) };
    Ok(Job { model, requests: inputs.into_iter().map(request).collect(), base64, dimensions })
}

fn inputs(given: Listed, encoder: &Encoder<'_>, config: &Config) -> Result<Vec<Vec<u32>>> {
    let check = |inputs: usize| match inputs {
        _ if inputs > config.max_inputs => {
            Err(ApiError::too_many("input", inputs, config.max_inputs, "inputs"))
        }
        _ => Ok(()),
    };
    let encode = |text| match text {
        Text::String(text) => encoder.text(&text, true),
        Text::Tokens(ids) => encoder.tokens(ids),
    };
    given.texts("input", check)?.into_iter().map(encode).collect()
}
