//! Results of `tern doctor`: counted, printed one by one, and summed up at the end.

use std::fmt;
use std::io::Write;

use crate::error::{CliError, CliResult};

/// Counts of correct and wrong results.
pub(crate) struct Verdicts<W> {
    pub(crate) out: W,
    /// Also print correct results.
    pub(crate) verbose: bool,
    right: usize,
    wrong: usize,
}

impl<W: Write> Verdicts<W> {
    pub(crate) fn new(out: W, verbose: bool) -> Verdicts<W> {
        Verdicts { out, verbose, right: 0, wrong: 0 }
    }

    pub(crate) fn add(&mut self, ok: bool, what: fmt::Arguments<'_>) -> CliResult<()> {
        *(if ok { &mut self.right } else { &mut self.wrong }) += 1;
        if !ok || self.verbose {
            writeln!(self.out, "{} {what}", if ok { "ok    " } else { "WRONG " })?;
        }
        Ok(())
    }

    /// Adds several results with their lines.
    pub(crate) fn add_all(&mut self, results: &[(bool, String)]) -> CliResult<()> {
        results.iter().try_for_each(|(ok, line)| self.add(*ok, format_args!("{line}")))
    }

    /// Prints the counts; an error, such as `3 ops are wrong on cuda:0`, if anything was wrong.
    pub(crate) fn end(mut self, wrong: fmt::Arguments<'_>) -> CliResult<()> {
        writeln!(self.out, "{} right, {} wrong", self.right, self.wrong)?;
        if self.wrong > 0 { Err(CliError::message(format!("{} {wrong}", self.wrong))) } else { Ok(()) }
    }
}
