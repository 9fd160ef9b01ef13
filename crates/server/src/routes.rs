//! The routes, and the layers that all of them share.

mod about;
mod chat;
mod cohere;
mod completions;
mod deliver;
mod embeddings;
mod health;
mod infill;
mod messages;
mod models;
mod ollama;
mod page;
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

/// The routes, for their description; a test compares them with [`router`].
const ROUTES: &[(&str, &str)] = &[
    ("get", "/"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/metrics"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{*id}"),
    ("get", "/lora-adapters"),
    ("post", "/lora-adapters"),
    ("post", "/models/load"),
    ("post", "/models/unload"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("post", "/v1/responses"),
    ("post", "/v1/responses/input_tokens"),
    ("get", "/v1/responses/{id}"),
    ("delete", "/v1/responses/{id}"),
    ("get", "/v1/responses/{id}/input_items"),
    ("post", "/v1/messages"),
    ("post", "/v1/messages/count_tokens"),
    ("post", "/api/chat"),
    ("post", "/api/generate"),
    ("post", "/api/embed"),
    ("post", "/api/embeddings"),
    ("get", "/api/tags"),
    ("get", "/api/ps"),
    ("post", "/api/show"),
    ("get", "/api/version"),
    ("post", "/api/pull"),
    ("delete", "/api/delete"),
    ("post", "/v1/embeddings"),
    ("post", "/v2/embed"),
    ("post", "/v1/embed"),
    ("post", "/embedding"),
    ("post", "/embeddings"),
    ("post", "/v1/rerank"),
    ("post", "/v2/rerank"),
    ("post", "/rerank"),
    ("post", "/v1/score"),
    ("post", "/score"),
    ("post", "/infill"),
    ("get", "/version"),
    ("get", "/props"),
    ("get", "/tokenizer_info"),
    ("get", "/openapi.json"),
    ("post", "/tokenize"),
    ("post", "/detokenize"),
];

/// All routes.
pub(crate) fn router(app: &Arc<App>, hosts: Hosts) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/lora-adapters", get(models::list_adapters))
        .route("/lora-adapters", post(models::set_adapters))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
        .route("/v1/chat/completions", post(generating(chat::prepare)))
        .route("/v1/completions", post(generating(completions::prepare)))
        .route("/v1/responses", post(generating(responses::prepare)))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/{id}", get(responses::one))
        .route("/v1/responses/{id}", delete(responses::delete))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", post(generating(messages::prepare)))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version))
        .route("/api/pull", post(ollama::pull))
        .route("/api/delete", delete(ollama::delete))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v2/embed", post(cohere::embed))
        .route("/v1/embed", post(cohere::embed_v1))
        .route("/embedding", post(token_embeddings::embedding))
        .route("/embeddings", post(token_embeddings::embedding))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/v2/rerank", post(rerank::rerank))
        .route("/rerank", post(rerank::rerank))
        .route("/v1/score", post(score::score))
        .route("/score", post(score::score))
        .route("/infill", post(generating(infill::prepare)))
        .route("/version", get(about::version))
        .route("/props", get(about::props))
        .route("/tokenizer_info", get(about::tokenizer_info))
        .route("/openapi.json", get(about::openapi))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
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

/// Checks the API key and the origin, and answers CORS preflights.
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
    } else if request.uri().path() == "/health" || app.keys.admit(&Key::of(request.headers())) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_route() {
        let source = include_str!("routes.rs");
        let route = |line: &'static str| {
            let (path, handler) = line.trim().strip_prefix(".route(\"")?.split_once("\", ")?;
            Some((handler.split_once('(')?.0, path))
        };
        let routes: Vec<(&str, &str)> = source.lines().filter_map(route).collect();
        assert_eq!(ROUTES, routes);
    }
}
