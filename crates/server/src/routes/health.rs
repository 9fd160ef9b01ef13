//! `/health`, `/ready` and `/metrics`: for whatever watches the server.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::json;

use crate::error::{ApiError, Result};
use crate::metrics::Engine;
use crate::state::{App, Stop};

/// Alive, also while it loads or drains: only what a new process would mend is a reason to start anew.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Response> {
    match app.fault() {
        Some(fault) => Err(fault),
        None => Ok(super::json(&json!({"status": "ok"}))),
    }
}

/// Ready for requests: the model is there, the engine moves and the server stays.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<Response> {
    app.fault().map_or(Ok(()), Err)?;
    if app.stopping() > Stop::No {
        return Err(ApiError::shutting_down());
    }
    let served = app.served()?;
    let (interval, deadline) = (app.config.ready_interval, app.config.ready_deadline);
    // whoever else asks meanwhile waits for the same look
    let look = app.probe.lock().await.look(&served, interval, deadline).await;
    // an engine that ended under the look says so itself
    look.map_err(|why| {
        let late = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).code("engine_stuck").retry(5);
        app.fault().unwrap_or(late)
    })?;
    Ok(super::json(&json!({"status": "ready"})))
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let served = app.served().ok();
    let engine = served.as_ref().map(|served| Engine {
        model: served.id(),
        stats: served.model.handle().stats(),
        up: app.fault().is_none(),
        step: served.model.handle().in_flight().map_or(Duration::ZERO, |step| step.age()),
    });
    let mut response = Response::new(Body::from(app.metrics.text(engine)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
