//! `tern serve` without a model: the chat model is offered if none is downloaded, and what is served is said.

use std::io::{BufRead, IsTerminal, Write};

use tern::hub::{KNOWN, Known, Location};
use tern::{LoadOptions, units};
use tern_server::Library;

use super::library::{LocalLibrary, listed};
use crate::args::ServeArgs;
use crate::error::{CliError, CliResult};

/// The model that is offered, and that of requests without a name.
pub(super) const CHAT_MODEL: &str = "smollm2";

/// The model of requests without a name: the chat model, else the only one that is downloaded, else the
/// embedded one if it is alone. `models` are names, and whether they are downloaded.
pub(super) fn default_of<'a>(models: impl Iterator<Item = (&'a str, bool)>) -> Option<String> {
    let models: Vec<(&str, bool)> = models.collect();
    let downloaded: Vec<&str> =
        models.iter().filter(|(_, downloaded)| *downloaded).map(|(name, _)| *name).collect();
    let default = match downloaded.as_slice() {
        names if names.contains(&CHAT_MODEL) => Some(CHAT_MODEL),
        [only] => Some(*only),
        [] => models.first().map(|(name, _)| *name),
        _ => None,
    };
    default.map(str::to_owned)
}

/// Downloads the chat model if no model is downloaded: with `--pull`, or if the user on the terminal says
/// yes.
pub(super) fn chat_model(args: &ServeArgs) -> CliResult<()> {
    let has_one = listed().iter().any(|entry| matches!(entry.location, Location::File(_)));
    if has_one || !(args.pull || (!args.model.quiet && accepted()?)) {
        return Ok(());
    }
    tern::pull(CHAT_MODEL, &LoadOptions::default(), &args.model.progress())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_chat_model_or_the_only_one() {
        let default = |models: &[(&str, bool)]| default_of(models.iter().copied());
        let stories = ("stories", false);
        assert_eq!(default(&[("a", true), (CHAT_MODEL, true), stories]).as_deref(), Some(CHAT_MODEL));
        assert_eq!(default(&[("a", true), stories]).as_deref(), Some("a"));
        assert_eq!(default(&[("a", true), ("b", true), stories]), None);
        assert_eq!(default(&[stories]).as_deref(), Some("stories"));
        assert_eq!(default(&[]), None);
    }
}
