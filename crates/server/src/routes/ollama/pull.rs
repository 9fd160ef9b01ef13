//! `/api/pull` and `/api/delete`: downloads a model and reports the progress; deletes one.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::take_name;
use crate::http::error::{ApiError, Result};
use crate::http::error_shape::ErrorShape;
use crate::http::frames::{Frames, Framing};
use crate::http::response_stream::{self, StreamFormat};
use crate::models::many::Many;
use crate::models::refusals::not_found;
use crate::models::registry::Registry;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::Params;
use crate::state::App;

/// Longest name of a model.
const MAX_NAME: usize = 200;

pub(in super::super) async fn pull(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    let body = crate::http::body::read(body, &app.config, &app.bodies).await?;
    let mut params = Params::parse(&body, unparsed(&app.config))?;
    let name = model_name(&mut params)?;
    let stream = params.bool("stream")?.unwrap_or(true);
    params.bool("insecure")?;
    params.finish(Object::Body, &[])?;
    let many = managed(&app, "download")?;
    let mut watcher = many.pulls.watch(&many.library, name.strip_suffix(":latest").unwrap_or(&name))?;
    let failed = |why: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why);
    if !stream {
        let mut last = Ok(Value::Null);
        while let Some(report) = watcher.next().await {
            last = report;
        }
        return last.map(|report| super::super::json(&report)).map_err(failed);
    }
    let mut on_panic = Frames::default();
    on_panic.line(&ErrorShape::Ollama.json(&ApiError::internal()));
    let format = StreamFormat { framing: Framing::Lines, keep_alive: app.config.keep_alive, on_panic };
    Ok(response_stream::response(format, move |sender| async move {
        while let Some(report) = watcher.next().await {
            let mut frames = Frames::default();
            match report {
                Ok(report) => frames.line(&report),
                Err(why) => frames.line(&ErrorShape::Ollama.json(&failed(why))),
            }
            sender.send(frames).await;
        }
    }))
}

/// Deletes a model of the library that no request uses.
pub(in super::super) async fn delete(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    let body = crate::http::body::read(body, &app.config, &app.bodies).await?;
    let mut params = Params::parse(&body, unparsed(&app.config))?;
    let name = model_name(&mut params)?;
    params.finish(Object::Body, &[])?;
    let many = Arc::clone(managed(&app, "delete")?);
    let found = many.find(&name).await.ok_or_else(|| not_found(format!("model {name:?} not found")))?;
    let bad = |why: String| ApiError::new(StatusCode::BAD_REQUEST, why);
    app.work(0, move || {
        many.release(&found)?;
        many.library.delete(&found).map_err(bad)
    })
    .await?;
    Ok(StatusCode::OK.into_response())
}

/// The models of a server whose models may be downloaded and deleted.
fn managed<'a>(app: &'a App, what: &str) -> Result<&'a Arc<Many>> {
    let Registry::Many(many) = &app.registry else {
        let message = format!("this server has one model: start it without a model to {what} models");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("one_model"));
    };
    if app.config.manage_models || !app.config.api_keys.is_empty() {
        return Ok(many);
    }
    let message = format!(
        "this server does not {what} models: start it with --manage-models, or with an API key that requests must send"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, message).code("models_not_managed"))
}

/// The name of a model: never a path, and nothing that could lead out of a folder.
fn model_name(params: &mut Params) -> Result<String> {
    take_name(params);
    let name = params.required_string("model")?;
    let is_path = name.starts_with(['/', '~', '.']) || name.contains("..") || name.contains('\\');
    if name.is_empty() || name.len() > MAX_NAME || is_path || name.contains(char::is_control) {
        let expected = "a name of /api/tags, or org/repo[:QUANT] of the hub";
        return Err(ApiError::expected("model", expected, &name.into()));
    }
    Ok(name)
}
