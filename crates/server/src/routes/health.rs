//! `/health`, `/ready` and `/metrics`, for monitoring.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::json;

use crate::failure;
use crate::http::error::{ApiError, Result};
use crate::metrics::Engine;
use crate::models::model::ServedModel;
use crate::models::registry::Registry;
use crate::state::{App, Stop};

/// Succeeds also during loading and draining: it fails only if a restart would help.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Response> {
    match app.fault() {
        Some(fault) => Err(fault),
        None => Ok(super::json(&json!({"status": "ok"}))),
    }
}

/// Succeeds if the model is loaded, the engine completes steps and the server is not shutting down.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<Response> {
    let several = matches!(&app.registry, Registry::Many(_));
    if !several {
        app.fault().map_or(Ok(()), Err)?;
    }
    if app.stopping() > Stop::No {
        return Err(ApiError::shutting_down());
    }
    if several {
        // they are loaded when they are requested, and one that is stuck does not affect the others
        return Ok(super::json(&json!({"status": "ready"})));
    }
    let served = app.registry.model(None).await?;
    let (interval, deadline) = (app.config.ready_interval, app.config.ready_deadline);
    // concurrent requests wait for the same check
    let checked = app.probe.lock().await.check(&served, interval, deadline).await;
    // if the engine has ended in the meantime, that is the reason
    checked.map_err(|why| {
        let late = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).code("engine_stuck").retry(5);
        app.fault().unwrap_or(late)
    })?;
    Ok(super::json(&json!({"status": "ready"})))
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let loaded = app.registry.loaded();
    let engine = |served: &'_ Arc<ServedModel>| Engine {
        stats: served.model.handle().stats(),
        page_len: served.model.handle().capacity().page_len,
        adapters: served.model.adapters().len(),
        up: failure::fault(served.model.handle(), app.config.stall_timeout).is_none(),
        step: served.model.handle().in_flight().map_or(Duration::ZERO, |step| step.age()),
    };
    let engines: Vec<(&str, Engine)> = loaded.iter().map(|served| (served.id(), engine(served))).collect();
    let mut response = Response::new(Body::from(app.metrics.text(&engines)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
