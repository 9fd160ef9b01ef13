//! `/embedding` and `/embeddings` of llama.cpp: the vector of each text or, with pooling
//! `none`, of each of its tokens.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use tern::engine::{Event, Request};
use tern::{Pooling, normalized};

use super::embeddings::{check_vectors, inputs};
use super::results::results;

use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::{Params, Unparsed};
use crate::request::prepare::Preparation;
use crate::request::prompt::model_name;
use crate::state::App;

struct Job {
    requests: Vec<Request>,
    normalize: bool,
}

pub(super) async fn embedding(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (served, job) = app.prepare(&log, body, prepare).await?;
    let each = served.model.pooling() == Pooling::None; // a vector per token
    let rows: Vec<usize> = job.requests.iter().map(|r| if each { r.prompt.len() } else { 1 }).collect();
    let take = |before, event: Event| match event {
        Event::Embedding(vector) => Some(vector),
        _ => before,
    };
    let vectors = results(&app, &served, &log, job.requests, 1, take).await?;
    let texts = (0..).zip(vectors.iter().zip(rows));
    let entry = |(index, (vector, rows)): (usize, (&Vec<f32>, usize))| json!({"index": index, "embedding": split(vector, rows, job.normalize)});
    Ok(super::json(&Value::Array(texts.map(entry).collect())))
}

/// The rows of a vector.
fn split(vector: &[f32], rows: usize, normalize: bool) -> Vec<Vec<f32>> {
    let rows = vector.chunks_exact((vector.len() / rows).max(1));
    rows.map(|row| if normalize { normalized(row.to_vec()) } else { row.to_vec() }).collect()
}

fn prepare(preparation: &Preparation<'_>) -> Result<Job> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let listed = &["input", "content"];
    let unparsed = Unparsed { listed, keep: config.max_inputs, ..unparsed(config) };
    let mut params = Params::parse(body, unparsed)?;
    model_name(&mut params, served)?;
    let normalize = match params.integer("embd_normalize", -1, i64::MAX)? {
        None => served.model.pooling() != Pooling::None,
        Some(-1) => false,
        Some(2) => true,
        Some(other) => {
            let message =
                format!("embd_normalize: expected 2 (length one) or -1 (not normalized), got {other}");
            return Err(ApiError::bad("embd_normalize", message));
        }
    };
    let input = params.listed("input")?;
    params.finish(Object::Body, &[])?;
    check_vectors(served)?;
    let inputs = inputs(input, &Encoder::of_texts(served, cancel, "input"), false, config)?;
    if let Some(at) = inputs.iter().position(Vec::is_empty) {
        return Err(ApiError::bad("input", format!("input: text {at} must not be empty")));
    }
    let request = |prompt| Request::embed(prompt, served.model.pooling());
    Ok(Job { requests: inputs.into_iter().map(request).collect(), normalize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_has_a_row_per_token() {
        let vector = [3.0, 4.0, 0.0, 2.0];
        assert_eq!(split(&vector, 2, false), [[3.0, 4.0], [0.0, 2.0]]);
        assert_eq!(split(&vector, 2, true), [[0.6, 0.8], [0.0, 1.0]]);
        assert_eq!(split(&vector, 1, false), [vector]);
    }
}
