//! `/api`: Ollama's API, with lines of JSON instead of events.

mod embed;
mod generate;
mod parameters;
mod pull;
mod reply;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub(super) use self::embed::{embed, embeddings};
pub(super) use self::generate::{chat, generate};
pub(super) use self::pull::pull;
use crate::clock::rfc3339;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::model::ServedModel;
use crate::models::registry::{Phase, Registry};
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::Params;
use crate::request::prepare::Preparation;
use crate::request::prompt::model_name;
use crate::state::App;

/// The version of Ollama whose API this is: clients require one.
const API_VERSION: &str = "0.13.0";

pub(super) async fn version() -> Response {
    super::json(&json!({"version": API_VERSION}))
}

/// The models that can be used without a download.
pub(super) async fn tags(State(app): State<Arc<App>>) -> Result<Response> {
    let models: Vec<Value> = match &app.registry {
        Registry::One(_) => {
            let served = app.registry.model(None).await?;
            served.names.iter().map(|name| tag(name, served.created, served.bytes(), Some(&served))).collect()
        }
        Registry::Many(many) => {
            let library = Arc::clone(&many.library);
            let models = app.work(0, move || Ok(library.list())).await?;
            let slots = app.registry.slots();
            let served =
                |name: &str| slots.iter().find(|slot| slot.name == name).and_then(|slot| slot.served());
            let entry = |model: &crate::LibraryModel| {
                tag(&model.name, model.modified, model.bytes, served(&model.name).as_deref())
            };
            models.iter().map(entry).collect()
        }
    };
    Ok(super::json(&json!({"models": models})))
}

fn tag(name: &str, modified: u64, bytes: u64, served: Option<&ServedModel>) -> Value {
    json!({
        "name": name, "model": name, "modified_at": rfc3339(modified, 0), "size": bytes, "digest": "",
        "details": details(served),
    })
}

/// What is known of a model; nothing before it is loaded.
fn details(served: Option<&ServedModel>) -> Value {
    let facts = served.and_then(|served| served.model.facts());
    let family = facts.map_or("", |facts| facts.arch.as_str());
    json!({
        "parent_model": "", "format": "gguf", "family": family, "families": [family],
        "parameter_size": facts.map_or_else(String::new, |facts| parameter_size(facts.parameters)),
        "quantization_level": facts.map_or("", |facts| facts.format),
    })
}

fn parameter_size(parameters: u64) -> String {
    match parameters {
        0..1_000_000_000 => format!("{:.0}M", parameters as f64 / 1e6),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}

/// The models that are loaded.
pub(super) async fn ps(State(app): State<Arc<App>>) -> Response {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let entry = |slot: &Arc<crate::models::registry::Slot>| {
        let Phase::Ready(served) = slot.phase.borrow().clone() else { return None };
        let usage = *slot.usage();
        // a model that is kept has a time far ahead, as with Ollama
        let left = usage.keep_alive.map_or(Duration::from_secs(100 * 365 * 86_400), |keep| {
            keep.saturating_sub(usage.used.elapsed())
        });
        let expires = rfc3339((now + left).as_secs(), 0);
        Some(json!({
            "name": served.id(), "model": served.id(), "size": served.bytes(), "digest": "",
            "details": details(Some(&served)), "expires_at": expires, "size_vram": served.bytes(),
            "context_length": served.model.context(),
        }))
    };
    let models: Vec<Value> = app.registry.slots().iter().filter_map(entry).collect();
    super::json(&json!({"models": models}))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (served, ()) = app.prepare(&log, body, only_model).await?;
    let (model, facts) = (&served.model, served.model.facts());
    let mut capabilities = vec!["completion"];
    if model.template().is_some() {
        capabilities.push("tools"); // described to models whose template has none
    }
    if model.markup().is_some_and(|markup| markup.reasoning.is_some()) {
        capabilities.push("thinking");
    }
    if model.tokenizer().fill_tokens().is_some() {
        capabilities.push("insert");
    }
    let arch = facts.map_or("", |facts| facts.arch.as_str());
    let mut info = json!({"general.architecture": arch, "tokenizer.ggml.tokens": null});
    if let Some(facts) = facts {
        info["general.parameter_count"] = facts.parameters.into();
        info[format!("{arch}.context_length")] = facts.context_trained.into();
        info[format!("{arch}.embedding_length")] = facts.width.into();
    }
    Ok(super::json(&json!({
        "modelfile": format!("FROM {}", served.id()), "parameters": "", "license": "",
        "template": model.tokenizer().chat_template().unwrap_or_default(),
        "details": details(Some(&served)), "model_info": info, "capabilities": capabilities,
        "modified_at": rfc3339(served.created, 0),
    })))
}

/// A body with nothing but the model's name.
fn only_model(preparation: &Preparation<'_>) -> Result<()> {
    let mut params = Params::parse(preparation.body, unparsed(preparation.config))?;
    take_name(&mut params);
    model_name(&mut params, preparation.served)?;
    params.bool("verbose")?;
    params.take("system");
    params.take("template");
    params.take("options");
    params.finish(Object::Body, &[])
}

/// Older clients call the model `name`.
fn take_name(params: &mut Params) {
    if params.peek("model").is_none() {
        params.rename("name", "model");
    } else {
        params.take("name");
    }
}

/// Deletes a model of the library; one that is in use is kept in memory until its requests end.
pub(super) async fn delete(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    let body = crate::http::body::read(body, &app.config, &app.bodies).await?;
    let mut params = Params::parse(&body, unparsed(&app.config))?;
    take_name(&mut params);
    let name = params.required_string("model")?;
    params.finish(Object::Body, &[])?;
    let Registry::Many(many) = &app.registry else { return Err(one_model_only("delete")) };
    let Some(found) = many.find(&name) else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("model {name:?} not found")));
    };
    app.registry.unload(&found);
    let library = Arc::clone(&many.library);
    let bad = |why: String| ApiError::new(StatusCode::BAD_REQUEST, why);
    app.work(0, move || library.delete(&found).map_err(bad)).await?;
    Ok(StatusCode::OK.into_response())
}

fn one_model_only(what: &str) -> ApiError {
    let message = format!("this server has one model: start it without a model to {what} models");
    ApiError::new(StatusCode::BAD_REQUEST, message).code("one_model")
}
