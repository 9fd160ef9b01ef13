//! The routes that answer connections, for the lines of a batch: the same bodies, codes and errors. Keys,
//! hosts and origins are those of connections and are not checked.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use crate::http::auth::Key;
use crate::http::error::ApiError;
use crate::http::request_log::Sender;
use crate::routes;
use crate::state::App;

/// The routes of a server for the lines of a batch. Clones are cheap.
#[derive(Clone)]
pub struct BatchRoutes {
    app: Arc<App>,
    router: Router,
    sender: Sender,
}

/// A whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The id of the request, as in the log.
    pub(crate) request_id: String,
    /// JSON.
    pub(crate) body: Bytes,
}

impl BatchRoutes {
    /// For a batch of this key.
    pub(crate) fn new(app: &Arc<App>, key: Key) -> BatchRoutes {
        BatchRoutes {
            app: Arc::clone(app),
            router: routes::for_batches(app),
            sender: Sender { key, batch: true },
        }
    }

    /// Whether the only model cannot answer any request from now on.
    pub(crate) fn has_ended(&self) -> bool {
        self.app.has_ended()
    }

    /// Sends a JSON body to a route and returns the whole response. Dropping the future cancels the request.
    pub(crate) async fn post(&self, path: &'static str, body: Bytes) -> Reply {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = axum::http::Uri::from_static(path);
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        request.extensions_mut().insert(self.sender);
        let response = match TowerToHyperService::new(self.router.clone()).call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status().as_u16();
        let id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok());
        let request_id = id.unwrap_or_default().to_owned();
        match to_bytes(response.into_body(), usize::MAX).await {
            Ok(body) => Reply { status, request_id, body },
            Err(_) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
                Reply { status, request_id, body: ApiError::internal().json().to_string().into() }
            }
        }
    }
}
