//! `/v1/models`: the served model under each of its names.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;

use super::json;
use crate::error::Result;
use crate::model::ServedModel;
use crate::prompt::unknown_model;
use crate::state::App;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The id of which this name is an alias.
    root: &'a str,
    max_model_len: usize,
    /// `completion`, and `chat` if the model has a chat template.
    capabilities: &'static [&'static str],
}

impl<'a> Entry<'a> {
    fn new(id: &'a str, served: &'a ServedModel) -> Entry<'a> {
        Entry {
            id,
            object: "model",
            created: served.created,
            owned_by: "tern",
            root: served.id(),
            max_model_len: served.model.context(),
            capabilities: match served.model.template() {
                Some(_) => &["completion", "chat"],
                None => &["completion"],
            },
        }
    }
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response> {
    let served = app.served()?;
    let data = served.names.iter().map(|name| Entry::new(name, &served)).collect();
    Ok(json(&List { object: "list", data }))
}

pub(super) async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response> {
    let served = app.served()?;
    match served.names.iter().find(|name| **name == id) {
        Some(name) => Ok(json(&Entry::new(name, &served))),
        None => Err(unknown_model(&id, &served)),
    }
}
