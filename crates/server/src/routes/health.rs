//! `/health`, `/ready` and `/metrics`: for whatever watches the server.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::json;

use crate::error::{ApiError, Result};
use crate::state::{App, Stop};

fn unavailable(words: String, code: &'static str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, words).code(code)
}

/// Alive, also while it loads or drains: only an engine that ended is a reason to start anew.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Response> {
    if let Some(why) = app.dead() {
        return Err(unavailable(why, "engine_stopped"));
    }
    match app.served() {
        Err(error) if error.code == Some("load_failed") => Err(error),
        _ => Ok(super::json(&json!({"status": "ok"}))),
    }
}

/// Ready for requests: the model is there, the engine moves and the server stays.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<Response> {
    if app.stopping() > Stop::No {
        return Err(ApiError::shutting_down());
    }
    let served = app.served()?;
    if let Some(why) = app.dead() {
        return Err(unavailable(why, "engine_stopped"));
    }
    let (interval, deadline) = (app.config.ready_interval, app.config.ready_deadline);
    // whoever else asks meanwhile waits for the same look
    let look = app.probe.lock().await.look(&served, interval, deadline).await;
    look.map_err(|why| unavailable(why, "engine_stuck").retry(5))?;
    Ok(super::json(&json!({"status": "ready"})))
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let served = app.served().ok();
    let model = served.as_ref().map(|served| (served.id(), served.model.handle.stats()));
    let mut response = Response::new(Body::from(app.metrics.text(model)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
