//! `tern serve` without a model: the chat model is offered if none is downloaded, and what is served is said.

use std::io::{BufRead, IsTerminal, Write};

use tern::hub::{KNOWN, Known, Location};
use tern::{LoadOptions, units};
use tern_server::Library;

use super::default_model::CHAT_MODEL;
use super::library::{LocalLibrary, listed};
use crate::args::ServeArgs;
use crate::error::{CliError, CliResult};

/// Downloads the chat model if no model is downloaded: with `--pull`, or if the user on the terminal says
/// yes.
pub(super) fn chat_model(args: &ServeArgs) -> CliResult<()> {
    let has_one = listed().iter().any(|entry| matches!(entry.location, Location::File(_)));
    if has_one || !(args.pull || (!args.engine.model.quiet && accepted()?)) {
        return Ok(());
    }
    tern::pull(CHAT_MODEL, &LoadOptions::default(), &args.engine.model.progress())?;
    Ok(())
}

/// Asks on a terminal.
fn accepted() -> CliResult<bool> {
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    let Some(known) = known().filter(|_| stdin.is_terminal() && stderr.is_terminal()) else {
        return Ok(false);
    };
    write!(stderr, "tern: no model is downloaded yet. Download {}? [y/N] ", described(known))
        .map_err(CliError::Io)?;
    stderr.flush().map_err(CliError::Io)?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn known() -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == CHAT_MODEL)
}

fn described(known: &Known) -> String {
    format!("the chat model {} ({}, {})", known.name, units::bytes(known.bytes), known.licence)
}

/// Says which models are served, and without a chat model how to get one.
pub(super) fn say(library: &LocalLibrary) {
    let names: Vec<String> = library.list().into_iter().map(|model| model.name).collect();
    match (library.only_embedded(), known()) {
        (true, Some(known)) => {
            eprintln!(
                "tern: no model is downloaded: serving only {}, which continues texts and cannot chat",
                names.join(", ")
            );
            eprintln!("tern: to chat, start with `tern serve --pull`, which downloads {}", described(known));
        }
        _ if names.is_empty() => eprintln!("tern: there is no model to serve yet"),
        _ => eprintln!("tern: models that are loaded on request: {}", names.join(", ")),
    }
}
