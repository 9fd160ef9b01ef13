//! The routes without a network: requests of the process that has the model.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use crate::http::error::ApiError;
use crate::http::hosts::Hosts;
use crate::routes;
use crate::server::Server;
use crate::state::{App, Stop};

/// The routes of a [`Server`], called instead of requested. Keys, limits and errors are those of the server.
pub struct InProcess {
    app: Arc<App>,
    router: Router,
}

/// The response to a request: its head, and its body piece by piece. Dropping it cancels the request.
pub struct Reply {
    response: Response,
}

impl Server {
    /// The routes for requests of this process. It needs a tokio runtime with timers.
    pub fn in_process(self) -> InProcess {
        let app = self.into_app();
        let router = routes::router(&app, Hosts::new(&app.config, None));
        InProcess { app, router }
    }
}

impl InProcess {
    /// Starts a request; dropping the future cancels it.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        body: Vec<u8>,
    ) -> Reply {
        let request = headers
            .into_iter()
            .fold(Request::builder().method(method).uri(path), |request, (name, value)| {
                request.header(name, value)
            })
            .body(Body::from(body));
        let response = match request {
            Ok(request) => match TowerToHyperService::new(self.router.clone()).call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
            Err(error) => {
                let message = format!("invalid request: {error}");
                ApiError::new(StatusCode::BAD_REQUEST, message).into_response()
            }
        };
        Reply { response }
    }

    /// Ends all requests with an error, now and from now on.
    pub fn stop(&self) {
        self.app.stop(Stop::Now);
    }
}

impl Reply {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The headers, in the order of the response; those that are no text are skipped.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let headers: &HeaderMap = self.response.headers();
        headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
    }

    /// The type of the body, such as `application/json`; empty if it has none.
    pub fn content_type(&self) -> &str {
        let value = self.response.headers().get(header::CONTENT_TYPE);
        value.and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The next piece of the body: all that has arrived, at least one event of a stream. None is the end.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut body = Pin::new(self.response.body_mut());
            // the bodies of routes are infallible
            let frame = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await?.ok()?;
            if let Ok(data) = frame.into_data() {
                return Some(data);
            }
        }
    }
}
