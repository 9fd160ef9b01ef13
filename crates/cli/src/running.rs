//! `tern ps` and `tern stop`: the models that a running server has loaded.

use std::io::Write;

use serde_json::{Value, json};
use tern::formats::shown;
use tern::units;

use crate::api::Server;
use crate::args::{PsArgs, StopArgs};
use crate::error::{CliError, CliResult};
use crate::nearest;

/// What `/api/ps` says of the loaded models.
fn loaded(server: &Server<'_>) -> CliResult<Vec<Value>> {
    let text = server.get("/api/ps")?;
    let failed = || CliError::message(format!("{}/api/ps: not the reply of a server of models", server.url));
    let mut reply: Value = serde_json::from_str(&text).map_err(|_| failed())?;
    match reply["models"].take() {
        Value::Array(models) => Ok(models),
        _ => Err(failed()),
    }
}

pub(crate) fn ps(args: &PsArgs) -> CliResult<()> {
    let server = Server::new(&args.server.url, args.server.api_key.as_deref());
    let models = loaded(&server)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({ "models": models }))?;
        return Ok(());
    }
    if models.is_empty() {
        eprintln!("tern: no model is loaded at {}", server.url);
        return Ok(());
    }
    let text = |value: &Value| shown(value.as_str().unwrap_or("-")).to_string();
    let number = |value: &Value| value.as_u64().map_or("-".into(), units::thousands);
    let rows = models.iter().map(|model| {
        let memory = model["size_vram"].as_u64().map_or("-".into(), units::bytes);
        let details = &model["details"];
        [
            text(&model["name"]),
            memory,
            number(&model["context_length"]),
            text(&details["quantization_level"]),
            text(&details["parameter_size"]),
            text(&model["expires_at"]).replace(".000000000", ""),
        ]
    });
    let heads = ["model", "memory", "context", "format", "weights", "loaded until"].map(String::from);
    let rows: Vec<[String; 6]> = std::iter::once(heads).chain(rows).collect();
    let widths: Vec<usize> =
        (0..6).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

pub(crate) fn stop(args: &StopArgs) -> CliResult<()> {
    let server = Server::new(&args.server.url, args.server.api_key.as_deref());
    let models = loaded(&server)?;
    let names: Vec<&str> = models.iter().filter_map(|model| model["name"].as_str()).collect();
    if !names.contains(&args.model.as_str()) {
        let near = nearest::tip(&args.model, names.iter().copied());
        let have = match names.as_slice() {
            [] => "no model is loaded".to_string(),
            names => format!("loaded: {}", names.join(", ")),
        };
        return Err(CliError::message(format!(
            "{} is not loaded at {}{near}; {have}",
            args.model, server.url
        )));
    }
    server.post("/api/generate", &json!({ "model": args.model, "keep_alive": 0 }))?;
    // idle models are unloaded every second, and a model that answers requests when they end
    for _ in 0..30 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let left = loaded(&server)?;
        if !left.iter().any(|model| model["name"] == args.model.as_str()) {
            writeln!(std::io::stdout(), "{} is unloaded", args.model)?;
            return Ok(());
        }
    }
    Err(CliError::message(format!(
        "{} is still loaded: it answers requests, or it is the only model of the server, which ends with it",
        args.model
    )))
}
