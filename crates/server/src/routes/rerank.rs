//! `/v1/rerank`, `/v2/rerank` and `/rerank`, in the shapes of Jina and Cohere, and of Text Embeddings
//! Inference if the documents are called `texts`.

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
use crate::request::prompt::model_name;
use crate::state::App;

struct Job {
    model: String,
    scoring: Scoring,
    documents: Vec<String>,
    /// Maximum number of results, the best first.
    top: usize,
    with_documents: bool,
    raw: bool,
    /// A bare array of results.
    bare: bool,
}

pub(super) async fn rerank(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (served, job) = app.prepare(&log, body, prepare).await?;
    let Job { model, scoring, documents, top, with_documents, raw, bare } = job;
    let tokens = scoring.tokens();
    let scores = scoring.scores(&app, &served, &log, raw).await?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // stable: equal scores in the order of the request
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(top);
    let result = |index: usize| {
        let (score, text) = if bare { ("score", "text") } else { ("relevance_score", "document") };
        let mut result = json!({"index": index, score: scores[index]});
        if with_documents {
            let document = &documents[index];
            result[text] = if bare { json!(document) } else { json!({"text": document}) };
        }
        result
    };
    let results: Vec<Value> = order.into_iter().map(result).collect();
    if bare {
        return Ok(super::json(&results));
    }
    Ok(super::json(&json!({
        "id": ids::id("rerank-"),
        "object": "list",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    })))
}

fn prepare(preparation: &Preparation<'_>) -> Result<Job> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, unparsed(config))?;
    let model = model_name(&mut params, served)?;
    let query = params.required_string("query")?;
    let bare = params.peek("texts").is_some();
    let name = if bare { "texts" } else { "documents" };
    let documents = texts(&mut params, name, config)?;
    let top = params.integer("top_n", 1, i64::MAX)?.map_or(documents.len(), |n| n as usize);
    let returned = if bare { "return_text" } else { "return_documents" };
    let with_documents = params.bool(returned)?.unwrap_or(false);
    let raw = params.bool("raw_scores")?.unwrap_or(false);
    let reading = Reading::take(&mut params)?;
    params.finish(Object::Body, REFUSED)?;
    if query.is_empty() {
        return Err(ApiError::bad("query", "query: must not be empty"));
    }
    let pairs: Vec<(&str, &str)> = documents.iter().map(|document| (&query[..], &document[..])).collect();
    let scoring = Scoring::new(&pairs, &reading, &Encoder::of_texts(served, cancel, name))?;
    Ok(Job { model, scoring, documents, top, with_documents, raw, bare })
}

/// Parameters of Cohere that are not supported.
const REFUSED: &[(&str, &str)] = &[
    ("rank_fields", "not supported: send documents as strings"),
    ("max_chunks_per_doc", "not supported: set max_tokens_per_doc or truncate to shorten documents"),
];
