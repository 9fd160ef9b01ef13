//! From the body of a request to requests of the engine: parsing, parameters, prompts and constraints.

pub(crate) mod adapters;
pub(crate) mod chat_request;
pub(crate) mod clients;
pub(crate) mod constraint;
pub(crate) mod conversation;
pub(crate) mod encode;
pub(crate) mod engine_requests;
pub(crate) mod gap;
pub(crate) mod ignored;
pub(crate) mod images;
pub(crate) mod json;
pub(crate) mod named_images;
pub(crate) mod options;
pub(crate) mod params;
pub(crate) mod prepare;
pub(crate) mod prompt;
pub(crate) mod questions;
pub(crate) mod samplers;
pub(crate) mod template_variables;
pub(crate) mod text_lists;
pub(crate) mod text_request;
pub(crate) mod tools;
pub(crate) mod workers;
