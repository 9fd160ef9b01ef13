//! What is the same for every route: connections and their limits, who may send requests, bodies, errors,
//! streams and the log of requests.

pub(crate) mod access;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod client_io;
pub(crate) mod connection;
pub(crate) mod connection_slots;
pub(crate) mod error;
pub(crate) mod error_shape;
pub(crate) mod file_body;
pub(crate) mod frames;
pub(crate) mod hosts;
pub(crate) mod multipart;
pub(crate) mod request_log;
pub(crate) mod response_stream;
