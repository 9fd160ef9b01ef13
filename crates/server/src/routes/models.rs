//! `/v1/models`: the models and whether they are loaded; routes to load and unload them.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::json;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::library::LibraryModel;
use crate::models::model::ServedModel;
use crate::models::names::listed;
use crate::models::refusals::unknown_model;
use crate::models::registry::Registry;
use crate::models::slot::Phase;
use crate::request::adapters;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::Params;
use crate::request::prepare::Preparation;
use crate::request::prompt::model_name;
use crate::state::App;

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The id of which this name is an alias.
    root: String,
    /// The model that an adapter is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// Known once the model is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    /// `completion`, `chat` if the model has a chat template, and `vision` if it takes images.
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<&'static [&'static str]>,
    status: Status,
}

#[derive(Serialize)]
struct Status {
    /// `loaded`, `loading`, `unloaded` or `failed`.
    value: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Entry {
    fn loaded(id: &str, served: &ServedModel) -> Entry {
        Entry {
            id: id.to_owned(),
            object: "model",
            created: served.created,
            owned_by: "tern",
            root: served.id().to_owned(),
            parent: None,
            max_model_len: Some(served.model.context()),
            capabilities: Some(capabilities(served.model.template().is_some(), served.model.sees())),
            status: Status { value: "loaded", error: None },
        }
    }

    /// An adapter of a loaded model.
    fn adapter(name: &str, served: &ServedModel) -> Entry {
        let parent = Some(served.id().to_owned());
        Entry { root: name.to_owned(), parent, ..Entry::loaded(name, served) }
    }

    /// A model of the library, whose slot is in this phase.
    fn of_library(model: LibraryModel, phase: Option<Phase>) -> Entry {
        let (value, error) = match phase {
            Some(Phase::Ready(served)) => return Entry::loaded(&model.name, &served),
            None => ("unloaded", None),
            Some(Phase::Loading) => ("loading", None),
            Some(Phase::Failed(why)) => ("failed", Some(why)),
            Some(Phase::NoMemory(_)) => ("unloaded", None),
        };
        Entry {
            root: model.name.clone(),
            parent: None,
            id: model.name,
            object: "model",
            created: model.modified,
            owned_by: "tern",
            max_model_len: None,
            capabilities: model.details.map(|details| capabilities(details.chats, details.sees)),
            status: Status { value, error },
        }
    }
}

/// What a model is used for.
fn capabilities(chats: bool, sees: bool) -> &'static [&'static str] {
    match (chats, sees) {
        (true, true) => &["completion", "chat", "vision"],
        (true, false) => &["completion", "chat"],
        (false, _) => &["completion"],
    }
}

/// All models under all their names.
async fn entries(app: &App) -> Result<Vec<Entry>> {
    match &app.registry {
        Registry::One(_) => {
            let served = app.registry.model(None).await?;
            let names = served.names.iter().map(|name| Entry::loaded(name, &served));
            let adapters = served.model.adapters().iter().filter(|file| !served.has_name(&file.name));
            Ok(names.chain(adapters.map(|file| Entry::adapter(&file.name, &served))).collect())
        }
        Registry::Many(many) => {
            let library = Arc::clone(&many.library);
            let models = app.work(0, move || Ok(library.described())).await?;
            let slots = app.registry.slots();
            let phase = |name: &str| {
                slots.iter().find(|slot| slot.name == name).map(|slot| slot.phase.borrow().clone())
            };
            let entry = |model: LibraryModel| {
                let phase = phase(&model.name);
                Entry::of_library(model, phase)
            };
            Ok(models.into_iter().map(entry).collect())
        }
    }
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response> {
    Ok(json(&List { object: "list", data: entries(&app).await? }))
}

pub(super) async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response> {
    let entries = entries(&app).await?;
    let untagged = id.strip_suffix(":latest").unwrap_or(&id);
    match entries.iter().find(|entry| entry.id == id || entry.id == untagged) {
        Some(entry) => Ok(json(entry)),
        None => {
            let mut names: Vec<&str> = entries.iter().map(|entry| entry.root.as_str()).collect();
            names.dedup();
            Err(unknown_model(&id, &listed(names)))
        }
    }
}

/// An adapter, as llama.cpp lists it, and its name.
#[derive(Serialize)]
struct AdapterEntry<'a> {
    id: usize,
    name: &'a str,
    path: String,
    /// The scale in requests that choose it by name.
    scale: f32,
    /// The scale in requests that choose none.
    default_scale: f32,
}

/// `/lora-adapters`: the adapters of the model, with their scales. Models of a library have none.
pub(super) async fn list_adapters(State(app): State<Arc<App>>) -> Result<Response> {
    if matches!(app.registry, Registry::Many(_)) {
        return Ok(json(&[(); 0]));
    }
    let served = app.registry.model(None).await?;
    let (files, defaults) = (served.model.adapters().iter().enumerate(), served.default_adapters.scales());
    let entries = files.map(|(id, tern::AdapterFile { name, path, scale })| AdapterEntry {
        id,
        name,
        path: path.display().to_string(),
        scale: *scale,
        default_scale: defaults.scale(id),
    });
    Ok(json(&entries.collect::<Vec<_>>()))
}

/// `POST /lora-adapters`: sets the adapters of requests that choose none, as in llama.cpp.
pub(super) async fn set_adapters(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    let body = crate::http::body::read(body, &app.config, &app.bodies).await?;
    if matches!(app.registry, Registry::Many(_)) {
        let message = "a server of several models has no adapters: start it with one model and its adapters";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let served = app.registry.model(None).await?;
    adapters::set_defaults(&body, &served)?;
    Ok(json(&serde_json::json!({"success": true})))
}

/// `/models/load`: loads a model of the library before it is requested.
pub(super) async fn load(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (served, ()) = app.prepare(&log, body, |preparation| only_model(preparation).map(|_| ())).await?;
    Ok(json(&Entry::loaded(served.id(), &served)))
}

/// `/models/unload`: drops a model of the library; running requests keep it until they end.
pub(super) async fn unload(State(app): State<Arc<App>>, body: Body) -> Result<Response> {
    let body = crate::http::body::read(body, &app.config, &app.bodies).await?;
    let mut params = Params::parse(&body, unparsed(&app.config))?;
    let name = params.required_string("model")?;
    params.finish(Object::Body, &[])?;
    if matches!(app.registry, Registry::One(_)) {
        return Err(ApiError::bad("model", "the only model of a server cannot be unloaded"));
    }
    let unloaded = app.registry.unload(&name).await;
    Ok(json(&serde_json::json!({"success": unloaded})))
}

/// A body with nothing but the model's name.
fn only_model(preparation: &Preparation<'_>) -> Result<String> {
    let mut params = Params::parse(preparation.body, unparsed(preparation.config))?;
    let name = model_name(&mut params, preparation.served)?;
    params.finish(Object::Body, &[])?;
    Ok(name)
}
