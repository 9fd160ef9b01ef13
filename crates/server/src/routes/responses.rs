//! `/v1/responses`: OpenAI's newer API, with items instead of messages and an optional
//! store of earlier responses.

pub(super) mod input;
mod reply;
mod request;
mod tools;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::deliver::Prepared;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::request::encode::Encoder;
use crate::request::prepare::Preparation;
use crate::response_store::StoredResponse;
use crate::state::App;

pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Prepared<reply::Reply>> {
    let request = request::take(preparation)?;
    let encoder = Encoder::new(preparation.served, preparation.cancel, "input");
    let job = request.chat.job(&encoder)?.job;
    Ok(Prepared { job, shape: request.reply, stream: request.stream })
}

/// `/v1/responses/input_tokens`: the number of tokens of a request's prompt.
pub(super) async fn input_tokens(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let count = |preparation: &Preparation<'_>| {
        let request = request::take(preparation)?;
        let encoder = Encoder::new(preparation.served, preparation.cancel, "input");
        Ok(request.chat.chat.prompt(&encoder)?.tokens.len())
    };
    let (_, tokens) = app.prepare(&log, body, count).await?;
    Ok(super::json(&json!({"object": "response.input_tokens", "input_tokens": tokens})))
}

pub(super) async fn one(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    Ok(super::json(&stored(&app, &log, &id)?.response))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    match app.responses(log.sender.key).remove(&id) {
        true => Ok(super::json(&json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(unknown(&id)),
    }
}

/// The items that preceded a response's output, newest first as OpenAI lists them.
pub(super) async fn input_items(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    let stored = stored(&app, &log, &id)?;
    let data: Vec<&Value> = stored.items[..stored.inputs].iter().rev().collect();
    let id_of = |item: Option<&&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (id_of(data.first()), id_of(data.last()));
    Ok(super::json(
        &json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": false}),
    ))
}

fn stored(app: &App, log: &RequestLog, id: &str) -> Result<StoredResponse> {
    app.responses(log.sender.key).get(id).ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(100).collect();
    let message = format!(
        "no stored response {id:?}: it was created with store false, deleted, or dropped for newer ones"
    );
    ApiError::new(StatusCode::NOT_FOUND, message).code("response_not_found")
}
