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
use axum::response::Response;
use serde_json::{Value, json};

pub(super) use self::embed::{embed, embeddings};
pub(super) use self::generate::{chat, generate};
pub(super) use self::pull::{delete, pull};
use crate::clock::rfc3339;
use crate::http::error::Result;
use crate::http::request_log::RequestLog;
use crate::models::library::LibraryModel;
use crate::models::model::ServedModel;
use crate::models::registry::Registry;
use crate::models::slot::{Phase, Slot};
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
            let tag = |name: &String| {
                let (name, bytes, modified) = (name.clone(), served.bytes(), served.created);
                let digest = served.digest.clone();
                tag(&LibraryModel { name, bytes, modified, digest, details: None }, Some(&served))
            };
            served.names.iter().map(tag).collect()
        }
        Registry::Many(many) => {
            let library = Arc::clone(&many.library);
            let models = app.work(0, move || Ok(library.described())).await?;
            let slots = app.registry.slots();
            let served =
                |name: &str| slots.iter().find(|slot| slot.name == name).and_then(|slot| slot.served());
            models.iter().map(|model| tag(model, served(&model.name).as_deref())).collect()
        }
    };
    Ok(super::json(&json!({"models": models})))
}

fn tag(model: &LibraryModel, served: Option<&ServedModel>) -> Value {
    let details = match &model.details {
        Some(known) => details(known.format, &known.family, known.parameters, known.quantization),
        None => details_of(served),
    };
    json!({
        "name": model.name, "model": model.name, "modified_at": rfc3339(model.modified, 0), "size": model.bytes,
        "digest": model.digest, "details": details,
    })
}

/// What is known of a loaded model.
fn details_of(served: Option<&ServedModel>) -> Value {
    match served.and_then(|served| served.model.facts()) {
        Some(facts) => details("gguf", &facts.arch, facts.parameters, facts.format),
        None => json!({
            "parent_model": "", "format": "gguf", "family": "", "families": [""], "parameter_size": "",
            "quantization_level": "",
        }),
    }
}

fn details(format: &str, family: &str, parameters: u64, quantization: &str) -> Value {
    json!({
        "parent_model": "", "format": format, "family": family, "families": [family],
        "parameter_size": parameter_size(parameters), "quantization_level": quantization,
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
    let entry = |slot: &Arc<Slot>| {
        let Phase::Ready(served) = slot.phase.borrow().clone() else { return None };
        let usage = *slot.usage();
        // a model that is kept has a time far ahead, as with Ollama
        let left = usage.keep_alive.map_or(Duration::from_secs(100 * 365 * 86_400), |keep| {
            keep.saturating_sub(usage.used.elapsed())
        });
        let expires = rfc3339((now + left).as_secs(), 0);
        Some(json!({
            "name": served.id(), "model": served.id(), "size": served.bytes(), "digest": served.digest,
            "details": details_of(Some(&served)), "expires_at": expires, "size_vram": served.bytes(),
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
    if model.sees() {
        capabilities.push("vision");
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
        "details": details_of(Some(&served)), "model_info": info, "capabilities": capabilities,
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
