//! `tern pull` and `tern list`.

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};
use tern::formats::escaped;
use tern::hub::{self, Entry, Location, Source};
use tern::{LoadOptions, OpenedTower, environment, units};

use crate::args::ListArgs;
use crate::error::CliResult;
use crate::load::Bars;
use crate::process::terminal;

pub(crate) fn pull(name: &str) -> CliResult<()> {
    let location = match tern::pull(name, &LoadOptions::default(), &Bars::default())? {
        Source::Embedded(name) => format!("{name} is embedded in the binary"),
        Source::Path(path) => path.display().to_string(),
    };
    let mut out = std::io::stdout().lock();
    // files have the names that a hub gives them
    let is_terminal = out.is_terminal();
    writeln!(out, "{}", terminal::model_text(&location, is_terminal))?;
    Ok(())
}

pub(crate) fn list(args: &ListArgs) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    let wide = out.is_terminal();
    let entries = hub::list(&environment::hub_config()?);
    if args.json {
        let models: Vec<Value> = entries.iter().map(to_json).collect();
        writeln!(out, "{}", json!({ "models": models }))?;
        return Ok(());
    }
    let width = entries.iter().map(|e| e.name.len()).max().unwrap_or(0);
    for mut e in entries {
        e.name = escaped(&e.name).into_owned(); // a folder in the cache may have any name
        let size = units::bytes(bytes(&e));
        let location = match &e.location {
            Location::Embedded => "embedded in the binary".to_string(),
            Location::File(path) => escaped(&path.display().to_string()).into_owned(),
            Location::Missing => format!("tern pull {}", e.name),
        };
        writeln!(out, "{:width$}  {size:>10}  {location}", e.name)?;
        if wide {
            let images = if sees(&e) { ", takes images" } else { "" };
            let licence = e.licence.map(|l| format!(" ({l})")).unwrap_or_default();
            let also = e.aliases.first().filter(|alias| alias.contains(':') && !alias.contains('/'));
            let also = also.map(|alias| format!(" (also {alias})")).unwrap_or_default();
            writeln!(out, "{:width$}  {:>10}  {}{images}{also}{licence}", "", "", escaped(&e.about))?;
        }
    }
    Ok(())
}

/// Whether a model of this machine has a tower beside it.
fn sees(entry: &Entry) -> bool {
    matches!(&entry.location, Location::File(path) if OpenedTower::is_beside(path))
}

/// The size of a model's files.
fn bytes(entry: &Entry) -> u64 {
    match entry.location {
        Location::Embedded => tern::STORIES.len() as u64,
        _ => entry.bytes,
    }
}

fn to_json(entry: &Entry) -> Value {
    let (location, path) = match &entry.location {
        Location::Embedded => ("embedded", None),
        Location::File(path) => ("local", Some(path.display().to_string())),
        Location::Missing => ("missing", None),
    };
    json!({
        "name": entry.name,
        "aliases": entry.aliases,
        "about": entry.about,
        "licence": entry.licence,
        "bytes": bytes(entry),
        "images": sees(entry),
        "location": location,
        "path": path,
    })
}
