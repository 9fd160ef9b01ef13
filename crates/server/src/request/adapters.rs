//! The adapters (LoRA) of a request: by the name that it has instead of the model's, by `lora`,
//! or those of all requests.

use axum::http::StatusCode;
use serde_json::Value;
use tern::AdapterScales;

use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::request::json::Values;
use crate::request::params::{Params, body_error};

/// The largest factor on what an adapter adds.
const MAX_SCALE: f64 = 1000.0;

const EXPECTED: &str = "the name of an adapter, or an array of {\"id\": NUMBER, \"scale\": NUMBER}";
const LIST: &str = "an array of {\"id\": NUMBER, \"scale\": NUMBER}";

/// Sets the adapters of requests that choose none to those of a body, `[{"id": 0, "scale": 0.5}]`;
/// the others get the scale 0.
pub(crate) fn set_defaults(body: &[u8], served: &ServedModel) -> Result<()> {
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let text = std::str::from_utf8(body).map_err(|e| bad(format!("the request body is not UTF-8: {e}")))?;
    let value = Values::new().parse(text).map_err(body_error)?;
    let Value::Array(list) = &value else {
        return Err(bad(format!("the request body must be {LIST}")));
    };
    served.default_adapters.set(scales_of(list, served)?);
    Ok(())
}

/// The adapters of a request for the model or adapter `name`: its own, those of `lora`,
/// or those of all requests.
pub(crate) fn take(params: &mut Params, served: &ServedModel, name: &str) -> Result<AdapterScales> {
    let named = served.adapter(name);
    match (params.take("lora"), named) {
        (None | Some(Value::Null), named) => Ok(named.unwrap_or_else(|| served.default_adapters.scales())),
        (Some(_), Some(_)) => {
            let message =
                format!("lora: the model {name:?} is an adapter already, request {:?}", served.id());
            Err(ApiError::bad("lora", message))
        }
        (Some(Value::String(name)), None) => {
            served.adapter(&name).ok_or_else(|| unknown(served, &Value::String(name)))
        }
        (Some(Value::Array(list)), None) => scales_of(&list, served),
        (Some(other), None) => Err(ApiError::expected("lora", EXPECTED, &other)),
    }
}

/// The scales of a list of adapters; 0 for those that it does not have.
fn scales_of(list: &[Value], served: &ServedModel) -> Result<AdapterScales> {
    let mut scales = vec![0.0; served.model.adapters().len()];
    for entry in list {
        let (at, scale) = entry_of(entry, served)?;
        scales[at] = scale;
    }
    Ok(AdapterScales::new(&scales))
}

/// The number and the scale of one adapter.
fn entry_of(entry: &Value, served: &ServedModel) -> Result<(usize, f32)> {
    let expected = || ApiError::expected("lora", EXPECTED, entry);
    let object = entry.as_object().ok_or_else(expected)?;
    if let Some(other) = object.keys().find(|key| !["id", "name", "scale"].contains(&key.as_str())) {
        return Err(ApiError::bad(
            "lora",
            format!("lora: unknown key {other:?}, want id or name, and scale"),
        ));
    }
    let files = served.model.adapters();
    let (at, asked) = match (object.get("id"), object.get("name")) {
        (Some(id), None) => (id.as_u64().and_then(|id| usize::try_from(id).ok()), id),
        (None, Some(name)) => (files.iter().position(|file| Some(file.name.as_str()) == name.as_str()), name),
        _ => return Err(expected()),
    };
    let Some((at, file)) = at.and_then(|at| Some((at, files.get(at)?))) else {
        return Err(unknown(served, asked));
    };
    let scale = match object.get("scale") {
        None => file.scale,
        Some(scale) => match scale.as_f64().filter(|scale| scale.abs() <= MAX_SCALE) {
            Some(scale) => scale as f32,
            None => return Err(ApiError::expected("lora", "scales from -1000 to 1000", scale)),
        },
    };
    Ok((at, scale))
}

fn unknown(served: &ServedModel, asked: &Value) -> ApiError {
    let names: Vec<&str> = served.model.adapters().iter().map(|file| file.name.as_str()).collect();
    let known = if names.is_empty() { "none".into() } else { names.join(", ") };
    let asked: String = asked.to_string().chars().take(100).collect();
    ApiError::bad("lora", format!("lora: the adapter {asked} does not exist; this server has {known}"))
}
