//! `/v1/files`: uploads of requests for batches, and the results of batches.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body::Body as _;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::pages::{Page, Query};
use crate::batches::Batches;
use crate::file_store::{FileRecord, FileStore, Upload, expiry};
use crate::http::error::{ApiError, Result};
use crate::http::file_body::FileBody;
use crate::http::multipart::{Multipart, Piece};
use crate::http::request_log::RequestLog;
use crate::models::names::shortened;
use crate::state::App;

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;
/// Maximum bytes of a field that is no file.
const MAX_FIELD: usize = 1 << 10;
/// Maximum characters of a file's name.
const MAX_NAME: usize = 255;
/// Time for which a file may be kept, as OpenAI has it: an hour to 30 days.
pub(super) const KEEP_SECONDS: std::ops::RangeInclusive<u64> = 3600..=30 * 24 * 3600;

/// The files and batches of a server, and who uses them.
pub(super) fn of_client<'a>(app: &'a App, log: &RequestLog) -> Result<(&'a Arc<Batches>, String)> {
    let batches = app.batches().ok_or_else(|| {
        let message = "this server stores no files: start it with --files FOLDER";
        ApiError::new(StatusCode::NOT_IMPLEMENTED, message).code("files_disabled")
    })?;
    Ok((batches, app.owner(log.sender.key).digits()))
}

/// Runs work on files on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|_| Err(ApiError::internal()))
}

pub(super) async fn upload(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    let form = Multipart::new(&headers)?;
    let form = Form {
        form,
        files: Arc::clone(&batches.files),
        owner,
        field: None,
        fields: Fields::default(),
        upload: None,
    };
    let record = form.read(body, &app).await?;
    Ok(super::json(&record.json()))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    let mut query = Query::parse(query.as_deref());
    let purpose = query.take("purpose");
    let page = Page::take(query)?;
    let mut files = batches.files.list(&owner);
    files.retain(|file| purpose.as_ref().is_none_or(|purpose| file.purpose == *purpose));
    page.json(&files, |file| &file.id, FileRecord::json)
}

pub(super) async fn one(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    Ok(super::json(&batches.files.get(&owner, &id)?.json()))
}

pub(super) async fn content(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    let files = Arc::clone(&batches.files);
    let (record, file) = blocking(move || files.read(&owner, &id)).await?;
    let mut response = Response::new(Body::new(FileBody::new(file, record.bytes)));
    let headers = response.headers_mut();
    // never a page of this origin
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(record.bytes));
    Ok(response)
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    Path(id): Path<String>,
) -> Result<Response> {
    let (batches, owner) = of_client(&app, &log)?;
    batches.files.get(&owner, &id)?;
    if let Some(batch) = batches.reader(&id) {
        let message = format!("the batch {batch} reads this file: cancel it first");
        return Err(ApiError::new(StatusCode::CONFLICT, message).code("file_in_use"));
    }
    let (files, name) = (Arc::clone(&batches.files), id.clone());
    blocking(move || files.delete(&owner, &name)).await?;
    Ok(super::json(&json!({"id": id, "object": "file", "deleted": true})))
}

/// An upload that is being read.
struct Form {
    form: Multipart,
    files: Arc<FileStore>,
    owner: String,
    /// The field that is being read; none while it is the file.
    field: Option<(String, Vec<u8>)>,
    fields: Fields,
    upload: Option<Box<Upload>>,
}

/// What the fields of the form say.
#[derive(Default)]
struct Fields {
    purpose: Option<String>,
    filename: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
}

impl Fields {
    /// The field of a name.
    fn named(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "purpose" => Some(&mut self.purpose),
            "expires_after[anchor]" => Some(&mut self.anchor),
            "expires_after[seconds]" => Some(&mut self.seconds),
            _ => None,
        }
    }

    /// Seconds that the file is kept.
    fn keep(&self) -> Result<Option<u64>> {
        let Some(seconds) = &self.seconds else { return Ok(None) };
        if self.anchor.as_deref() != Some("created_at") {
            let message = "expires_after[anchor]: expected created_at";
            return Err(ApiError::bad("expires_after", message));
        }
        match seconds.parse() {
            Ok(seconds) if KEEP_SECONDS.contains(&seconds) => Ok(Some(seconds)),
            _ => {
                Err(ApiError::expected("expires_after[seconds]", "3600 to 2592000", &seconds.as_str().into()))
            }
        }
    }
}

impl Form {
    /// Reads the body to its end. A client must send a mebibyte within [`Config::read_timeout`], or all.
    ///
    /// [`Config::read_timeout`]: crate::Config::read_timeout
    async fn read(mut self, mut body: Body, app: &App) -> Result<FileRecord> {
        let late = |_| {
            let message = format!(
                "the request body is too slow: expected {CHUNK} bytes every {} s",
                app.config.read_timeout.as_secs_f64()
            );
            ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
        };
        loop {
            let (bytes, ended) = timeout(app.config.read_timeout, chunk(&mut body)).await.map_err(late)??;
            // parsing and writing block
            self = blocking(move || self.add(&bytes)).await?;
            if ended {
                return blocking(move || self.finish()).await;
            }
        }
    }

    /// Adds the next bytes of the body.
    fn add(mut self, bytes: &[u8]) -> Result<Form> {
        for piece in self.form.push(bytes)? {
            match piece {
                Piece::Part(head) => {
                    self.end_field()?;
                    if head.name != "file" {
                        self.field = Some((head.name, vec![]));
                        continue;
                    }
                    if self.upload.is_some() {
                        return Err(ApiError::bad("file", "file: expected one file"));
                    }
                    let name: String = head.filename.unwrap_or_default().chars().take(MAX_NAME).collect();
                    self.fields.filename = Some(if name.is_empty() { "file".into() } else { name });
                    self.upload = Some(Box::new(self.files.upload(self.owner.clone())?));
                }
                Piece::Data(data) => match (&mut self.field, &mut self.upload) {
                    (Some((name, text)), _) => {
                        if text.len() + data.len() > MAX_FIELD {
                            let message =
                                format!("{}: exceeds the limit of {MAX_FIELD} bytes", shortened(name));
                            return Err(ApiError::bad(shortened(name), message));
                        }
                        text.extend_from_slice(&data);
                    }
                    (None, Some(upload)) => upload.write(&data)?,
                    (None, None) => {}
                },
            }
        }
        Ok(self)
    }

    /// Takes the field that was read.
    fn end_field(&mut self) -> Result<()> {
        let Some((name, text)) = self.field.take() else { return Ok(()) };
        let Some(field) = self.fields.named(&name) else {
            let name = shortened(&name);
            return Err(ApiError::bad(name.clone(), format!("unknown parameter: {name}")));
        };
        *field = Some(String::from_utf8_lossy(&text).into_owned());
        Ok(())
    }

    /// Makes the file.
    fn finish(mut self) -> Result<FileRecord> {
        self.form.end()?;
        self.end_field()?;
        let missing = |name: &str| ApiError::bad(name, format!("{name}: missing"));
        match self.fields.purpose.as_deref() {
            None => return Err(missing("purpose")),
            Some("batch") => {}
            Some(other) => return Err(ApiError::expected("purpose", "batch", &other.into())),
        }
        let keep = self.fields.keep()?;
        let upload = self.upload.take().ok_or_else(|| missing("file"))?;
        upload.finish(self.fields.filename.take().unwrap_or_default(), "batch", expiry(keep))
    }
}

/// The next bytes of a body, at least [`CHUNK`], or all to its end; whether it has ended.
async fn chunk(body: &mut Body) -> Result<(Vec<u8>, bool)> {
    let mut bytes = vec![];
    while bytes.len() < CHUNK {
        let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *body).poll_frame(cx)).await;
        let Some(frame) = frame else { return Ok((bytes, true)) };
        let broken = |error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the request body could not be read: {error}"))
        };
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok((bytes, false))
}
