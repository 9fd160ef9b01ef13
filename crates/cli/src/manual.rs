//! `tern completions` and `tern man`: what other programs know of the command line.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::error::{CliError, CliResult};

pub(crate) fn completions(shell: Shell) -> CliResult<()> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "tern", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// A page per command in a folder, or the first page on stdout.
pub(crate) fn man(folder: Option<&Path>) -> CliResult<()> {
    let Some(folder) = folder else {
        clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?;
        return Ok(());
    };
    let failed = |e: std::io::Error| CliError::message(format!("{}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    eprintln!("tern: wrote the pages; read one with `man {}/tern.1`", folder.display());
    Ok(())
}
