//! The routes, and the layers that all of them share.

mod about;
mod batches;
mod chat;
mod cohere;
mod completions;
mod decisions;
mod deliver;
mod embeddings;
mod files;
mod health;
mod infill;
mod messages;
mod models;
mod ollama;
mod page;
mod pages;
mod reply_header;
mod rerank;
mod responses;
mod results;
mod score;
mod scoring;
mod token_embeddings;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::Serialize;

use self::deliver::generating;
use crate::http::auth::{self, Key};
use crate::http::error::ApiError;
use crate::http::hosts::{self, Hosts};
use crate::http::{access, error_shape};
use crate::state::App;

/// Defines [`ROUTES`] and [`all_routes`] from one list of methods, paths and handlers.
macro_rules! routes {
    ($($method:ident $path:literal => $handler:expr;)*) => {
        /// The method and the path of each route, for their description.
        const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),*];

        fn all_routes() -> Router<Arc<App>> {
            Router::new()$(.route($path, $method($handler)))*
        }
    };
}

routes! {
    get "/" => page::page;
    get "/page/{*id}" => page::asset;
    get "/health" => health::health;
    get "/ready" => health::ready;
    get "/metrics" => health::metrics;
    get "/v1/models" => models::list;
    get "/v1/models/{*id}" => models::one;
    get "/lora-adapters" => models::list_adapters;
    post "/lora-adapters" => models::set_adapters;
    post "/models/load" => models::load;
    post "/models/unload" => models::unload;
    post "/v1/chat/completions" => generating(chat::prepare);
    post "/v1/completions" => generating(completions::prepare);
    post "/v1/responses" => generating(responses::prepare);
    post "/v1/responses/input_tokens" => responses::input_tokens;
    get "/v1/responses/{id}" => responses::one;
    delete "/v1/responses/{id}" => responses::delete;
    get "/v1/responses/{id}/input_items" => responses::input_items;
    post "/v1/files" => files::upload;
    get "/v1/files" => files::list;
    get "/v1/files/{id}" => files::one;
    delete "/v1/files/{id}" => files::delete;
    get "/v1/files/{id}/content" => files::content;
    post "/v1/batches" => batches::create;
    get "/v1/batches" => batches::list;
    get "/v1/batches/{id}" => batches::one;
    post "/v1/batches/{id}/cancel" => batches::cancel;
    post "/v1/messages" => generating(messages::prepare);
    post "/v1/messages/count_tokens" => messages::count_tokens;
    post "/api/chat" => ollama::chat;
    post "/api/generate" => ollama::generate;
    post "/api/embed" => ollama::embed;
    post "/api/embeddings" => ollama::embeddings;
    get "/api/tags" => ollama::tags;
    get "/api/ps" => ollama::ps;
    post "/api/show" => ollama::show;
    get "/api/version" => ollama::version;
    post "/api/pull" => ollama::pull;
    delete "/api/delete" => ollama::delete;
    post "/v1/embeddings" => embeddings::embeddings;
    post "/v2/embed" => cohere::embed;
    post "/v1/embed" => cohere::embed_v1;
    post "/embedding" => token_embeddings::embedding;
    post "/embeddings" => token_embeddings::embedding;
    post "/v1/rerank" => rerank::rerank;
    post "/v2/rerank" => rerank::rerank;
    post "/rerank" => rerank::rerank;
    post "/v1/decisions" => decisions::decisions;
    post "/v1/systemone" => decisions::system_one;
    post "/v1/score" => score::score;
    post "/score" => score::score;
    post "/infill" => generating(infill::prepare);
    get "/version" => about::version;
    get "/props" => about::props;
    get "/tokenizer_info" => about::tokenizer_info;
    get "/openapi.json" => about::openapi;
    post "/tokenize" => tokens::tokenize;
    post "/detokenize" => tokens::detokenize;
}

/// All routes, and the answers to what is none.
fn answering() -> Router<Arc<App>> {
    all_routes().fallback(unknown).method_not_allowed_fallback(wrong_method)
}

/// The routes for the lines of batches, which come from no connection.
pub(crate) fn for_batches(app: &Arc<App>) -> Router {
    answering()
        .layer(from_fn(error_shape::layer))
        .layer(from_fn_with_state(Arc::clone(app), access::layer))
        .with_state(Arc::clone(app))
}

/// All routes with the layers that they share.
pub(crate) fn router(app: &Arc<App>, hosts: Hosts) -> Router {
    answering()
        .layer(from_fn_with_state(Arc::clone(app), gate))
        .layer(from_fn_with_state(Arc::new(hosts), hosts::layer))
        .layer(from_fn(error_shape::layer))
        .layer(from_fn_with_state(Arc::clone(app), access::layer))
        .with_state(Arc::clone(app))
}

async fn unknown(request: Request) -> ApiError {
    let message = format!("unknown route: {} {}", request.method(), request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_route")
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("method not allowed: {} {}", request.method(), request.uri().path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("wrong_method")
}

/// Checks the API key and the origin, and answers CORS preflights of allowed origins: the layer of
/// `tower-http` would answer every `OPTIONS` request with 200, before keys and routes are checked.
async fn gate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let from = request.headers().get(header::ORIGIN);
    let origin = from.filter(|origin| allowed(&app, origin)).cloned();
    // a browser sends a simple POST for any page, which costs work even if the page cannot read the response
    let foreign = origin.is_none()
        && request.method() == Method::POST
        && from.is_some_and(|from| !is_same_origin(from, request.headers().get(header::HOST)));
    let preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight && origin.is_some() {
        let mut response = StatusCode::NO_CONTENT.into_response();
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE, OPTIONS"),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                "authorization, content-type, x-request-id, x-api-key, anthropic-version, anthropic-beta",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    } else if foreign {
        let message = "origin not allowed: add it to the server's allowed CORS origins";
        ApiError::new(StatusCode::FORBIDDEN, message).code("foreign_origin").into_response()
    } else if is_open(&app, request.uri().path()) || app.keys.admit(&Key::of(request.headers())) {
        next.run(request).await
    } else {
        auth::refusal()
    };
    if let Some(origin) = origin {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// Whether a route needs no key.
fn is_open(app: &App, path: &str) -> bool {
    path == "/health" || (app.config.open_monitoring && access::MONITORING.contains(&path))
}

/// Whether a page was served by the host that it calls.
fn is_same_origin(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    origin.is_some() && origin == host.and_then(|host| host.to_str().ok())
}

fn allowed(app: &App, origin: &HeaderValue) -> bool {
    app.config.cors_origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
}

/// A JSON response.
fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => json_text(text),
        Err(_) => ApiError::internal().into_response(),
    }
}

/// A response whose body is already JSON.
fn json_text(text: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
