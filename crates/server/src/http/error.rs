//! Error responses, in the shape of the OpenAI API.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tern::engine::{EngineError, Fault};

/// An error response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The parameter that is at fault.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Seconds after which the request may be retried.
    pub(crate) retry_after: Option<u32>,
    /// The lengths, if the prompt is too long: each API has its own words for it.
    pub(crate) too_long: Option<TooLong>,
}

/// A prompt, and how long it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong {
    pub(crate) tokens: usize,
    pub(crate) max_tokens: usize,
}

/// The result of a route.
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

/// Parameters whose name in the engine differs from the API's.
const PARAMETERS: &[(&str, &str)] = &[("bias", "logit_bias")];

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            too_long: None,
        }
    }

    /// A 400 response about one parameter.
    pub(crate) fn bad(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A value of the wrong type or outside its range.
    pub(crate) fn expected(param: &str, expected: impl AsRef<str>, got: &Value) -> ApiError {
        ApiError::mismatch(param, expected, &describe(got))
    }

    /// As [`ApiError::expected`], for a value that is already described.
    pub(crate) fn mismatch(param: &str, expected: impl AsRef<str>, got: &str) -> ApiError {
        ApiError::bad(param, format!("{param}: expected {}, got {got}", expected.as_ref()))
    }

    /// A prompt or text that does not fit the context. Clients find out by the first words.
    pub(crate) fn too_long(param: &str, too_long: TooLong) -> ApiError {
        let TooLong { tokens, max_tokens } = too_long;
        let message = format!(
            "{param}: this model's maximum context length is {max_tokens} tokens, but the text has {tokens}"
        );
        let error = ApiError::bad(param, message).code("context_length_exceeded");
        ApiError { too_long: Some(too_long), ..error }
    }

    /// More of something than is allowed.
    pub(crate) fn too_many(param: &str, got: usize, limit: usize, what: &str) -> ApiError {
        ApiError::bad(param, format!("{param}: {got} {what} exceed the limit of {limit}"))
    }

    pub(crate) fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    pub(crate) fn retry(self, seconds: u32) -> ApiError {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// A failure of the server itself; the log has the cause.
    pub(crate) fn internal() -> ApiError {
        let message = "internal server error; see the server's log";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("internal_error")
    }

    pub(crate) fn timeout(seconds: f64) -> ApiError {
        let message = format!("the request exceeded the time limit of {seconds} s");
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("timeout")
    }

    pub(crate) fn shutting_down() -> ApiError {
        let message = "the server is shutting down";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("shutting_down").retry(5)
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

/// A short description of a value.
pub(crate) fn describe(value: &Value) -> String {
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
        let message = error.to_string();
        match (error.fault(), &error) {
            (_, &EngineError::Context { prompt, max_context, .. }) => {
                // one token of the context is that of the answer
                let too_long = Some(TooLong { tokens: prompt, max_tokens: max_context.saturating_sub(1) });
                let error = ApiError::bad("max_tokens", message).code("context_length_exceeded");
                ApiError { too_long, ..error }
            }
            (_, EngineError::Pages { .. }) => {
                ApiError::bad("max_tokens", message).code("context_length_exceeded")
            }
            (Fault::Request, EngineError::Range { name, .. } | EngineError::Token { name, .. }) => {
                let renamed = PARAMETERS.iter().find(|(engine, _)| engine == name);
                ApiError::bad(renamed.map_or(*name, |(_, api)| api), message)
            }
            (Fault::Request, EngineError::EmptyPrompt) => ApiError::bad("prompt", message),
            (Fault::Request, _) => ApiError::new(StatusCode::BAD_REQUEST, message),
            (Fault::Busy, _) => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full").retry(1)
            }
            (Fault::Engine, _) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code(engine_code(&error))
            }
        }
    }
}

/// The `code` of an engine error.
pub(crate) fn engine_code(error: &EngineError) -> &'static str {
    match error {
        EngineError::DeviceLost(_) => "device_lost",
        EngineError::Broken(_) | EngineError::Panicked(_) | EngineError::Stopped => "engine_stopped",
        _ => "engine_error",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // for the access log, and for APIs with another shape
        response.extensions_mut().insert(self);
        response
    }
}
