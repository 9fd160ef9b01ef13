//! From arguments, the environment and the config file to a command.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use crate::args::{Cli, Command, habits};
use crate::settings::{self, Settings};

/// Why there is no command to execute: help, wrong usage, or a wrong config file.
pub(crate) enum Ended {
    /// The parser's message, which may be help.
    Usage(clap::Error),
    /// What is wrong with the config file.
    Config(String),
}

impl Ended {
    /// Prints the message and returns the exit code.
    pub(crate) fn report(self) -> u8 {
        match self {
            Ended::Usage(error) => {
                let _ = error.print();
                u8::try_from(error.exit_code()).unwrap_or(2)
            }
            Ended::Config(why) => {
                eprintln!("tern: {why}");
                1
            }
        }
    }
}

pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, Ended> {
    let args: Vec<OsString> = habits::long_flags(args).collect();
    let settings = Settings::read(&Cli::command());
    let command = match &settings {
        Ok(settings) => settings.apply(Cli::command()),
        Err(_) => Cli::command(),
    };
    let parsed = command.try_get_matches_from(&args).and_then(|matches| Cli::from_arg_matches(&matches));
    match (parsed, settings) {
        (Ok(cli), Ok(_)) => Ok(cli),
        // what a wrong file must not prevent
        (Ok(cli), Err(_))
            if matches!(cli.command, Command::Config | Command::Completions { .. } | Command::Man { .. }) =>
        {
            Ok(cli)
        }
        (Err(error), Err(_))
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            Err(Ended::Usage(error))
        }
        (_, Err(why)) => Err(Ended::Config(why)),
        (Err(mut error), Ok(settings)) => {
            habits::advise(&mut error, &args);
            name_the_file(&mut error, &settings);
            Err(Ended::Usage(error))
        }
    }
}

/// Says where a wrong value is from, if the file has it.
fn name_the_file(error: &mut clap::Error, settings: &Settings) {
    let (Some(ContextValue::String(arg)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return;
    };
    let flag = arg.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default();
    if let Some(origin) = settings.origin(flag, value) {
        let tip = format!("the value is from {origin}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// `tern config`: where the file is, and what it and the environment set.
pub(crate) fn config() -> crate::error::CliResult<()> {
    use std::io::Write;

    let mut out = std::io::stdout().lock();
    match settings::path() {
        Some(path) if path.exists() => writeln!(out, "{}", path.display())?,
        Some(path) => writeln!(out, "{} (missing)", path.display())?,
        None => writeln!(out, "no config file: TERN_CONFIG is empty, or there is no HOME")?,
    }
    let settings = Settings::read(&Cli::command()).map_err(crate::error::CliError::message)?;
    settings.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}
