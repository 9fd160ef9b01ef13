//! What the server is: `/version`, `/props`, `/tokenizer_info` and `/openapi.json`.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use tern::Sampling;
use tern::graph::{PARAMETERS, Parameter, Range};

use super::pages::Query;
use crate::FINGERPRINT;
use crate::http::error::Result;
use crate::request::json::decimal;
use crate::state::App;

pub(super) async fn version() -> Response {
    super::json(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// The settings of the default model, or of the one that `?model=` names, in llama.cpp's shape.
pub(super) async fn props(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response> {
    let name = Query::parse(query.as_deref()).take("model");
    let served = app.registry.model(name.as_deref()).await?;
    let (model, defaults) = (&served.model, &served.defaults);
    let params: Map<String, Value> =
        PARAMETERS.iter().map(|p| (p.name.into(), default(p, defaults))).collect();
    let settings = json!({"n_ctx": model.context(), "params": params});
    Ok(super::json(&json!({
        "default_generation_settings": settings, "total_slots": model.handle().limits().max_seqs,
        "model_alias": served.id(), "model_path": model.name(),
        "chat_template": model.tokenizer().chat_template().unwrap_or_default(),
        "modalities": {"vision": model.sees(), "audio": false}, "build_info": FINGERPRINT,
    })))
}

/// The value that a parameter has in requests without it.
fn default(parameter: &Parameter, defaults: &Sampling) -> Value {
    let value = (parameter.get)(defaults);
    match parameter.range {
        Range::Number { .. } => decimal(value as f32),
        Range::Integer { .. } => (value as i64).into(),
    }
}

/// The sampling parameters as a schema.
fn sampling_parameters() -> Value {
    let property = |parameter: &Parameter| match parameter.range {
        Range::Number { low, high } => json!({
            "type": "number", "minimum": low, "maximum": high, "description": parameter.help,
        }),
        Range::Integer { low, high } => {
            let mut property = json!({"type": "integer", "minimum": low, "description": parameter.help});
            if high < i64::MAX {
                property["maximum"] = high.into();
            }
            property
        }
    };
    let properties: Map<String, Value> =
        PARAMETERS.iter().map(|parameter| (parameter.name.into(), property(parameter))).collect();
    json!({"type": "object", "properties": properties})
}

/// The default model's special tokens and template, in vLLM's shape.
pub(super) async fn tokenizer_info(State(app): State<Arc<App>>) -> Result<Response> {
    let served = app.registry.model(None).await?;
    let tokenizer = served.model.tokenizer();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    Ok(super::json(&json!({
        "tokenizer_class": "tern", "vocab_size": tokenizer.vocab_size(), "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()), "pad_token": null, "add_bos_token": tokenizer.add_bos(),
        "chat_template": tokenizer.chat_template(),
    })))
}

/// The routes and their methods, and the sampling parameters. Bodies are those of the
/// APIs' own specifications.
pub(super) async fn openapi() -> Response {
    let mut paths = Map::new();
    for (method, path) in super::ROUTES {
        let operation = json!({"summary": format!("{} {path}", method.to_uppercase()), "responses": {"200": {"description": "OK"}}});
        let entry = paths.entry(path.replace("{*id}", "{id}")).or_insert_with(|| json!({}));
        entry[*method] = operation;
        if path.contains("{") {
            let id = json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string"}});
            entry[*method]["parameters"] = Value::Array(vec![id]);
        }
    }
    let info = json!({"title": "Tern", "version": env!("CARGO_PKG_VERSION")});
    let components = json!({"schemas": {"SamplingParameters": sampling_parameters()}});
    super::json(&json!({"openapi": "3.1.0", "info": info, "paths": paths, "components": components}))
}
