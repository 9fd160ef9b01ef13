//! The chat page: one file that may connect only to this server.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

const PAGE: &str = include_str!("../../ui/index.html");

const HEADERS: &[(header::HeaderName, &str)] = &[
    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // a newer server has a newer page
    (header::CACHE_CONTROL, "no-cache"),
];

pub(super) async fn page() -> Response {
    let mut response = Response::new(Body::from(PAGE));
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
