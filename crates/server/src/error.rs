//! What a client is told when something is wrong: one shape, the one OpenAI's clients read.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tern::engine::{EngineError, Fault};

use crate::failure::engine_code;

/// A refusal or a failure, as a client sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The parameter that is at fault.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Seconds after which the same request may do better.
    pub(crate) retry_after: Option<u32>,
}

/// What a route answers.
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

/// The engine's names of what the API calls otherwise.
const PARAMETERS: &[(&str, &str)] = &[
    ("bias", "logit_bias"),
    ("frequency", "frequency_penalty"),
    ("presence", "presence_penalty"),
    ("repetition", "repetition_penalty"),
];

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// The request cannot be served as it is.
    pub(crate) fn bad(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A value that is not what the parameter takes.
    pub(crate) fn want(param: &str, want: impl AsRef<str>, got: &Value) -> ApiError {
        ApiError::want_words(param, want, &glimpse(got))
    }

    /// The same for what was given in a few words.
    pub(crate) fn want_words(param: &str, want: impl AsRef<str>, got: &str) -> ApiError {
        ApiError::bad(param, format!("{param}: want {}, got {got}", want.as_ref()))
    }

    /// More of something than is allowed.
    pub(crate) fn too_many(param: &str, got: usize, limit: usize, what: &str) -> ApiError {
        ApiError::bad(param, format!("{param}: {got} {what}, the limit is {limit}"))
    }

    pub(crate) fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    pub(crate) fn retry(self, seconds: u32) -> ApiError {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// Something broke that is not the client's fault. The log says what.
    pub(crate) fn internal() -> ApiError {
        let words = "the server failed on this request; its log says why";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, words).code("internal_error")
    }

    pub(crate) fn timeout(seconds: f64) -> ApiError {
        let words = format!("the request took longer than the {seconds} s it may take");
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, words).code("timeout")
    }

    pub(crate) fn shutting_down() -> ApiError {
        let words = "the server is shutting down";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, words).code("shutting_down").retry(5)
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            429 => "rate_limit_error",
            401 => "authentication_error",
            408 | 504 => "timeout_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// `{"error": {...}}`
    pub(crate) fn json(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        }})
    }
}

/// A value in a few words.
pub(crate) fn glimpse(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.chars().count() > 60 => {
            format!("{:?}...", text.chars().take(60).collect::<String>())
        }
        other => other.to_string(),
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let words = error.to_string();
        match (error.fault(), &error) {
            (_, EngineError::Context { .. } | EngineError::Pages { .. }) => {
                ApiError::bad("max_tokens", words).code("context_length_exceeded")
            }
            (Fault::Request, EngineError::Range { name, .. } | EngineError::Token { name, .. }) => {
                let renamed = PARAMETERS.iter().find(|(engine, _)| engine == name);
                ApiError::bad(renamed.map_or(*name, |(_, api)| api), words)
            }
            (Fault::Request, EngineError::EmptyPrompt) => ApiError::bad("prompt", words),
            (Fault::Request, _) => ApiError::new(StatusCode::BAD_REQUEST, words),
            (Fault::Busy, _) => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, words).code("queue_full").retry(1)
            }
            (Fault::Engine, _) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, words).code(engine_code(&error))
            }
        }
    }
}

/// The words of an error, for the access log.
#[derive(Clone)]
pub(crate) struct ErrorWords(pub(crate) String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(ErrorWords(self.message));
        response
    }
}
