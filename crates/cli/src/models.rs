//! `tern pull`, `tern list`, and where the bytes of a named model are.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use tern_formats::{Access, Checkpoint, FormatError, escaped};
use tern_hub::{Config, Location, Progress, Source};

use crate::error::CliResult;
use crate::units;

/// Our own native 1-bit model, inside the binary: the default of `run`.
static STORIES: &[u8] = include_bytes!("../models/tern-stories-1bit.gguf");

/// Bars on stderr; nothing is drawn where stderr is no terminal.
#[derive(Default)]
struct Bars(RefCell<Option<ProgressBar>>);

impl Progress for Bars {
    fn begin(&self, label: &str, total: Option<u64>) {
        let bar = match total {
            Some(total) => byte_bar(label, total),
            None => labelled(ProgressBar::new_spinner(), label, "{spinner} {msg} {elapsed}"),
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        *self.0.borrow_mut() = Some(bar);
    }

    fn at(&self, done: u64) {
        if let Some(bar) = &*self.0.borrow() {
            bar.set_position(done);
        }
    }

    fn end(&self) {
        if let Some(bar) = self.0.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }

    fn note(&self, text: &str) {
        eprintln!("tern: {text}");
    }
}

fn labelled(bar: ProgressBar, label: &str, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(label.to_string())
}

/// A bar for work counted in bytes.
pub(crate) fn byte_bar(label: &str, total: u64) -> ProgressBar {
    labelled(ProgressBar::new(total), label, "{msg} [{bar:30}] {bytes} of {total_bytes}, {eta}")
}

/// A bar for work counted in pieces.
pub(crate) fn count_bar(label: &str, total: u64) -> ProgressBar {
    labelled(ProgressBar::new(total), label, "{msg} [{bar:30}] {pos} of {len}, {eta}")
}

fn config() -> CliResult<Config> {
    Ok(Config::from_env(|name| std::env::var(name).ok())?)
}

/// Opens a model to run it.
pub(crate) fn open(name: &str, access: Access) -> CliResult<Checkpoint> {
    open_with(name, |path| Checkpoint::open_as(path, access))
}

/// Opens a model to look at it, also where it cannot be run.
pub(crate) fn open_for_inspection(name: &str) -> CliResult<Checkpoint> {
    open_with(name, Checkpoint::open_for_inspection)
}

/// Finds a model, fetched first where it has a name and is not here, and opens it.
fn open_with(name: &str, open: impl Fn(&Path) -> Result<Checkpoint, FormatError>) -> CliResult<Checkpoint> {
    let source = match tern_hub::local(name)? {
        Some(source) => source, // needs no folder of ours, so no HOME either
        None => tern_hub::resolve(name, &config()?, true, &Bars::default())?,
    };
    match source {
        Source::Embedded(_) => Ok(Checkpoint::from_bytes(Bytes::from_static(STORIES))?),
        Source::Path(path) => Ok(open(&path)?),
    }
}

pub(crate) fn pull(name: &str) -> CliResult<()> {
    let source = match tern_hub::local(name)? {
        Some(source) => source,
        None => tern_hub::pull(name, &config()?, &Bars::default())?,
    };
    let place = match source {
        Source::Embedded(name) => format!("{name} is inside the binary"),
        Source::Path(path) => path.display().to_string(),
    };
    writeln!(std::io::stdout(), "{place}")?;
    Ok(())
}

pub(crate) fn list() -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    let wide = out.is_terminal();
    let entries = tern_hub::list(&config()?);
    let width = entries.iter().map(|e| e.name.len()).max().unwrap_or(0);
    for mut e in entries {
        e.name = escaped(&e.name).into_owned(); // a folder in the cache may have any name
        let size = match &e.location {
            Location::Embedded => units::bytes(STORIES.len() as u64),
            _ => units::bytes(e.bytes),
        };
        let location = match &e.location {
            Location::Embedded => "in the binary".to_string(),
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
