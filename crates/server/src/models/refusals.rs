//! Responses to requests for a model that is not loaded.

use axum::http::StatusCode;

use crate::http::error::ApiError;
use crate::models::names::shortened;

/// The response to requests for a model that is being loaded.
pub(crate) fn loading(message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("loading").retry(2)
}

/// A name that no model has; `known` are the names of those that exist.
pub(crate) fn unknown_model(name: &str, known: &str) -> ApiError {
    not_found(format!("the model {:?} does not exist; this server has {known:?}", shortened(name)))
}

/// A 404 response about the model.
pub(crate) fn not_found(message: String) -> ApiError {
    let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
    ApiError { param: Some("model".into()), ..error }
}
