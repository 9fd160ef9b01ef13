//! `/v1/batches`: files of requests that are answered while the server has nothing more urgent to do.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use serde_json::{Map, Value};

use super::files::{KEEP_SECONDS, blocking, of_client};
use super::pages::{Page, Query};
use crate::batch::ENDPOINTS;
use crate::batches::{BatchRecord, NewBatch};
use crate::http::body::read;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::request::ignored::Object;
use crate::request::params::{Params, Unparsed};
use crate::state::App;

/// Maximum entries of `metadata`, and characters of their names and values.
const METADATA: (usize, usize, usize) = (16, 64, 512);

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    let body = read(body, &app.config, &app.bodies).await?;
    let new = new_batch(&body, &app)?;
    let (batches, app) = (Arc::clone(batches), Arc::clone(&app));
    let runtime = tokio::runtime::Handle::current();
    let batch = blocking(move || {
        let _runtime = runtime.enter();
        batches.create(&app, &owner, new)
    });
    Ok(super::json(&batch.await?.json()))
}

fn new_batch(body: &[u8], app: &App) -> Result<NewBatch> {
    let unknown = app.config.unknown_parameters;
    let mut params = Params::parse(body, Unparsed { unknown, ..Unparsed::default() })?;
    let input_file_id = params.required_string("input_file_id")?;
    let endpoint = params.required_string("endpoint")?;
    let known = ENDPOINTS.iter().copied().find(|known| *known == endpoint);
    let endpoint = known
        .ok_or_else(|| ApiError::expected("endpoint", ENDPOINTS.join(", "), &endpoint.as_str().into()))?;
    match params.string("completion_window")?.as_deref() {
        None | Some("24h") => {}
        Some(other) => return Err(ApiError::expected("completion_window", "24h", &other.into())),
    }
    let metadata =
        params.object("metadata")?.map(|metadata| self::metadata(metadata.into_map())).transpose()?;
    let keep_results = match params.object("output_expires_after")? {
        None => None,
        Some(mut expiry) => {
            let anchor = expiry.required_string("anchor")?;
            if anchor != "created_at" {
                return Err(ApiError::expected("output_expires_after.anchor", "created_at", &anchor.into()));
            }
            let (least, most) = (*KEEP_SECONDS.start() as i64, *KEEP_SECONDS.end() as i64);
            let seconds = expiry.integer("seconds", least, most)?;
            let seconds = seconds.ok_or_else(|| expiry.missing("seconds"))?;
            expiry.finish(Object::Batch, &[])?;
            Some(seconds as u64)
        }
    };
    params.finish(Object::Batch, &[])?;
    Ok(NewBatch { input_file_id, endpoint, metadata, keep_results })
}

fn metadata(map: Map<String, Value>) -> Result<Map<String, Value>> {
    let (entries, name, value) = METADATA;
    let fits = |(key, text): (&String, &Value)| {
        key.chars().count() <= name && text.as_str().is_some_and(|text| text.chars().count() <= value)
    };
    if map.len() <= entries && map.iter().all(fits) {
        return Ok(map);
    }
    let message = format!(
        "metadata: expected at most {entries} texts of at most {value} characters, with names of at most {name}"
    );
    Err(ApiError::bad("metadata", message))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    let page = Page::take(Query::parse(query.as_deref()))?;
    page.json(&batches.list(&owner), |batch| &batch.id, BatchRecord::json)
}

pub(super) async fn one(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    Ok(super::json(&batches.get(&owner, &id)?.json()))
}

pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    let batches = Arc::clone(batches);
    let batch = blocking(move || batches.cancel(&owner, &id)).await?;
    Ok(super::json(&batch.json()))
}
