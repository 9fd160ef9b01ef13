//! `/v1/score` and `/score`, in vLLM's shape: the score of each pair of texts.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::scoring::{Reading, Scoring, texts};
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::ids;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::Params;
use crate::request::prepare::Preparation;
use crate::request::prompt::{model_name, now};
use crate::state::App;

struct Job {
    model: String,
    scoring: Scoring,
}

pub(super) async fn score(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (served, Job { model, scoring }) = app.prepare(&log, body, prepare).await?;
    let tokens = scoring.tokens();
    let scores = scoring.scores(&app, &served, &log, false).await?;
    let entry = |(index, score): (usize, &f32)| json!({"index": index, "object": "score", "score": score});
    Ok(super::json(&json!({
        "id": ids::id("score-"),
        "object": "list",
        "created": now(),
        "model": model,
        "data": scores.iter().enumerate().map(entry).collect::<Vec<Value>>(),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

fn prepare(preparation: &Preparation<'_>) -> Result<Job> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, unparsed(config))?;
    let model = model_name(&mut params, served)?;
    let mut side = |name: &str| match params.peek(name) {
        Some(Value::String(_)) => Ok(vec![params.required_string(name)?]),
        _ => texts(&mut params, name, config),
    };
    let (first, second) = (side("text_1")?, side("text_2")?);
    let reading = Reading::take(&mut params)?;
    params.finish(Object::Body, &[])?;
    if first.len() != 1 && first.len() != second.len() {
        let (a, b) = (first.len(), second.len());
        let message = format!("text_1: expected one text or as many as text_2 ({b}), got {a}");
        return Err(ApiError::bad("text_1", message));
    }
    let firsts = first.iter().cycle();
    let pairs: Vec<(&str, &str)> = firsts.zip(&second).map(|(a, b)| (&a[..], &b[..])).collect();
    let scoring = Scoring::new(&pairs, &reading, &Encoder::of_texts(served, cancel, "text_2"))?;
    Ok(Job { model, scoring })
}
