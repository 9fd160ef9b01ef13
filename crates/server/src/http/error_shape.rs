//! Errors in the shape of the API that a request belongs to, chosen by its path.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};

use crate::http::error::{ApiError, TooLong};

/// An API with its own shape of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    OpenAi,
    Anthropic,
    Ollama,
    Cohere,
}

impl ErrorShape {
    fn of_path(path: &str) -> ErrorShape {
        match path {
            path if path.starts_with("/v1/messages") => ErrorShape::Anthropic,
            path if path.starts_with("/api/") => ErrorShape::Ollama,
            path if path.starts_with("/v2/") || path == "/v1/embed" => ErrorShape::Cohere,
            _ => ErrorShape::OpenAi,
        }
    }

    /// The body of an error response.
    pub(crate) fn json(self, error: &ApiError) -> Value {
        match self {
            ErrorShape::OpenAi => error.json(),
            ErrorShape::Anthropic => {
                let (kind, message) = (anthropic_type(error), anthropic_message(error));
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
            ErrorShape::Ollama => json!({"error": error.message}),
            ErrorShape::Cohere => json!({"message": error.message}),
        }
    }
}

/// Clients such as Claude Code read the numbers of a prompt that is too long, and shorten the conversation.
fn anthropic_message(error: &ApiError) -> String {
    match error.too_long {
        Some(TooLong { tokens, max_tokens }) => {
            format!("prompt is too long: {tokens} tokens > {max_tokens} maximum")
        }
        None => error.message.clone(),
    }
}

fn anthropic_type(error: &ApiError) -> &'static str {
    match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 | 408 => "timeout_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Rewrites the body of an error response for the API of the request's path.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let shape = ErrorShape::of_path(request.uri().path());
    let mut response = next.run(request).await;
    if shape == ErrorShape::OpenAi {
        return response;
    }
    if let Some(error) = response.extensions().get::<ApiError>() {
        let body = shape.json(error).to_string();
        *response.body_mut() = Body::from(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_follow_the_api_of_the_path() {
        let error = ApiError::bad("max_tokens", "max_tokens: missing");
        for (path, want) in [
            (
                "/v1/messages",
                json!({"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: missing"}}),
            ),
            ("/api/chat", json!({"error": "max_tokens: missing"})),
            ("/v2/embed", json!({"message": "max_tokens: missing"})),
            ("/v1/embed", json!({"message": "max_tokens: missing"})),
            ("/v1/embeddings", error.json()),
            ("/v1/responses", error.json()),
        ] {
            assert_eq!(ErrorShape::of_path(path).json(&error), want);
        }
    }
}
