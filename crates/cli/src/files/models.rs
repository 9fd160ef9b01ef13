//! `tern pull` and `tern list`.

use std::io::{IsTerminal, Write};

use tern::formats::escaped;
use tern::hub::{self, Location, Source};
use tern::{LoadOptions, environment, units};

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

pub(crate) fn list() -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    let wide = out.is_terminal();
    let entries = hub::list(&environment::hub_config()?);
    let width = entries.iter().map(|e| e.name.len()).max().unwrap_or(0);
    for mut e in entries {
        e.name = escaped(&e.name).into_owned(); // a folder in the cache may have any name
        let size = match &e.location {
            Location::Embedded => units::bytes(tern::STORIES.len() as u64),
            _ => units::bytes(e.bytes),
        };
        let location = match &e.location {
            Location::Embedded => "embedded in the binary".to_string(),
            Location::File(path) => escaped(&path.display().to_string()).into_owned(),
            Location::Missing => format!("tern pull {}", e.name),
        };
        writeln!(out, "{:width$}  {size:>10}  {location}", e.name)?;
        if wide {
            let licence = e.licence.map(|l| format!(" ({l})")).unwrap_or_default();
            writeln!(out, "{:width$}  {:>10}  {}{licence}", "", "", escaped(&e.about))?;
        }
    }
    Ok(())
}
