//! `tern rm`: deletes downloaded models.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use tern::hub::{self, Entry, Location};
use tern::{environment, units};

use crate::args::RmArgs;
use crate::error::{CliError, CliResult};
use crate::nearest;

pub(crate) fn remove(args: &RmArgs) -> CliResult<()> {
    let config = environment::hub_config()?;
    let entries = hub::list(&config);
    // all names are checked before the first file is deleted
    let found: Vec<&Entry> =
        args.models.iter().map(|name| downloaded(name, &entries)).collect::<CliResult<_>>()?;
    for entry in found {
        let size = units::bytes(entry.bytes);
        if !args.yes && !agreed(&format!("delete {} ({size})?", entry.name))? {
            continue;
        }
        hub::delete(entry, &config)?;
        writeln!(std::io::stdout(), "{} is deleted ({size})", entry.name)?;
    }
    Ok(())
}

/// The model of this name, if it is in the cache.
fn downloaded<'a>(name: &str, entries: &'a [Entry]) -> CliResult<&'a Entry> {
    let Some(entry) = entries.iter().find(|entry| entry.is_named(name)) else {
        let local = entries.iter().filter(|entry| matches!(entry.location, Location::File(_)));
        let tip = nearest::tip(name, local.map(|entry| entry.name.as_str()));
        let text = match Path::new(name).exists() {
            true => format!("{name} is not in the cache: `rm` deletes only what was downloaded"),
            false => format!("{name} is not downloaded{tip}: `tern list` has the names"),
        };
        return Err(CliError::message(text));
    };
    match entry.location {
        Location::File(_) => Ok(entry),
        Location::Embedded => Err(CliError::message(format!("{name} is embedded in the binary"))),
        Location::Missing => Err(CliError::message(format!("{name} is not downloaded"))),
    }
}

/// Asks on a terminal; elsewhere --yes is required.
fn agreed(question: &str) -> CliResult<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(CliError::message(format!("{question} This is not a terminal: use --yes")));
    }
    let mut err = std::io::stderr();
    write!(err, "tern: {question} [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
