//! Requests from this process, answered by the routes that also answer connections: the same bodies, codes and
//! errors. Keys, hosts and origins are those of connections and are not checked.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request, header};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use crate::http::auth::Key;
use crate::http::error::ApiError;
use crate::http::request_log::Sender;
use crate::routes;
use crate::state::App;

/// The routes of a server, for the process that it runs in. Clones are cheap.
#[derive(Clone)]
pub struct InProcess {
    app: Arc<App>,
    router: Router,
    sender: Sender,
}

/// A whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The id of the request, as in the log.
    pub request_id: String,
    /// JSON, or events if the request asked for a stream.
    pub body: Bytes,
}

impl InProcess {
    pub(crate) fn new(app: &Arc<App>, sender: Sender) -> InProcess {
        InProcess { app: Arc::clone(app), router: routes::in_process(app), sender }
    }

    /// The lines of a batch of this key.
    pub(crate) fn of_batch(app: &Arc<App>, key: Key) -> InProcess {
        InProcess::new(app, Sender { key, batch: true })
    }

    /// Whether the only model cannot answer any request from now on.
    pub(crate) fn has_ended(&self) -> bool {
        self.app.has_ended()
    }

    /// Sends a JSON body to a route and returns the whole response. Dropping the future cancels the request.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        let request = Request::builder().method(Method::POST).uri(path).extension(self.sender);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.into()));
        let Ok(request) = request else { return Reply::error(&unusable(path)) };
        let response = match TowerToHyperService::new(self.router.clone()).call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status().as_u16();
        let id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok());
        let request_id = id.unwrap_or_default().to_owned();
        match to_bytes(response.into_body(), usize::MAX).await {
            Ok(body) => Reply { status, request_id, body },
            Err(_) => Reply { request_id, ..Reply::error(&ApiError::internal()) },
        }
    }
}

impl Reply {
    fn error(error: &ApiError) -> Reply {
        let body = error.json().to_string().into();
        Reply { status: error.status.as_u16(), request_id: String::new(), body }
    }
}

fn unusable(path: &str) -> ApiError {
    let message = format!("unusable path: {:?}", path.chars().take(100).collect::<String>());
    ApiError::new(axum::http::StatusCode::BAD_REQUEST, message)
}
