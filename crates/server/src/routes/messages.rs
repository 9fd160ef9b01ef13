//! `/v1/messages`: Anthropic's API, with content blocks instead of messages of several roles.

mod input;
mod reply;
mod request;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::deliver::Prepared;
use crate::http::error::Result;
use crate::http::request_log::RequestLog;
use crate::request::encode::Encoder;
use crate::request::prepare::Preparation;
use crate::state::App;

pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Prepared<reply::Reply>> {
    let request = request::take(preparation, true)?;
    let encoder = Encoder::new(preparation.served, preparation.cancel, "messages");
    let stops = request.chat.options.stops.clone();
    let job = request.chat.job(&encoder)?.job;
    Ok(Prepared { job, shape: reply::Reply::new(request.model, stops), stream: request.stream })
}

/// `/v1/messages/count_tokens`: the number of tokens of a request's prompt, of any length.
pub(super) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let count = |preparation: &Preparation<'_>| {
        let request = request::take(preparation, false)?;
        let encoder = Encoder::new(preparation.served, preparation.cancel, "messages");
        let encoder = Encoder { max_tokens: usize::MAX, ..encoder };
        Ok(request.chat.chat.prompt(&encoder)?.tokens.len())
    };
    let (_, tokens) = app.prepare(&log, body, count).await?;
    Ok(super::json(&json!({"input_tokens": tokens})))
}
