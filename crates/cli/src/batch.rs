//! `tern batch`: a file of requests in, a file of results out.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tern::{LoadOptions, units};
use tern_server::{Batch, BatchCounts, BatchError, BatchFiles, BatchRules, BatchStop, Config, Server};
use tokio::sync::watch;

use crate::args::BatchArgs;
use crate::error::{CliError, CliResult};
use crate::load;
use crate::process::signals;
use crate::serve::{model, runtime};

/// Maximum bytes of a request: more than any context holds.
const MAX_REQUEST: usize = 64 << 20;
/// Time between two lines of progress on a stderr that is no terminal.
const REPORT: Duration = Duration::from_secs(30);

impl From<BatchError> for CliError {
    fn from(error: BatchError) -> CliError {
        CliError::message(error.to_string())
    }
}

pub(crate) fn batch(args: &BatchArgs) -> CliResult<()> {
    args.engine.sampling.0.check()?;
    let errors = args.errors.clone().unwrap_or_else(|| errors_beside(&args.output));
    let files = BatchFiles { input: args.input.clone(), output: args.output.clone(), errors };
    let rules = BatchRules { max_line_bytes: MAX_REQUEST, ..BatchRules::default() };
    let mut batch = Batch::open(files.clone(), rules)?;
    let before = batch.counts();
    let shown = |message: &str| {
        if !args.engine.model.quiet {
            eprintln!("tern: {message}");
        }
    };
    if before.is_complete() {
        shown(&format!("all {} requests were answered before", requests(before.total)));
        return summary(&files, before);
    }
    if before.completed + before.failed > 0 {
        let done = units::thousands((before.completed + before.failed) as u64);
        shown(&format!("continuing after {done} of {} requests", requests(before.total)));
    }
    let (target, names) = named(args, batch.model())?;
    // a few requests wait, so that the place of one that ends is taken in the next step
    let in_flight = args.engine.max_num_seqs + args.engine.max_num_seqs / 4 + 1;
    let options = LoadOptions {
        max_waiting: in_flight.saturating_mul(2),
        step_millis: 0, // the throughput counts, not the latency of a token
        ..model::load_options(&args.engine)
    };
    let served = model::load(&args.engine, &options, &target, names)?;
    let (most, defaults) = (MAX_REQUEST, model::config(&args.engine));
    let config = Config { max_body: most, max_bodies: most.saturating_mul(8), ..defaults };
    let server = Server::new(config);
    server.loader().ready(served);
    let runtime = runtime::start()?;
    let progress = Reporter::new(before, args.engine.model.quiet);
    let start = Instant::now();
    let counts = runtime.block_on(async {
        let (stop, stopped) = watch::channel(BatchStop::No);
        tokio::spawn(async move {
            signals::stop().await;
            let _ = stop.send(BatchStop::Now);
            std::future::pending::<()>().await; // the sender lives as long as the batch
        });
        batch.run(&server.batch_routes(), in_flight, stopped, |counts| progress.at(counts)).await
    });
    progress.end();
    runtime.shutdown_background();
    let counts = counts.map_err(|error| match error {
        error @ BatchError::Lines { .. } => CliError::from(error),
        error => CliError::message(format!(
            "{error}; what is answered is kept: run the same command again for the rest"
        )),
    })?;
    if !counts.is_complete() {
        let done = units::thousands((counts.completed + counts.failed) as u64);
        let all = requests(counts.total);
        return Err(CliError::message(format!(
            "stopped: {done} of {all} requests are answered; run the same command again for the rest"
        )));
    }
    shown(&speed(before, counts, start.elapsed()));
    summary(&files, counts)
}

fn requests(count: usize) -> String {
    units::thousands(count as u64)
}

/// The model of -m, or else of the requests, and the names that requests may use.
fn named(args: &BatchArgs, requested: Option<&str>) -> CliResult<(String, Vec<String>)> {
    let engine = &args.engine;
    let target = engine.model.given().or(requested).ok_or_else(|| {
        CliError::message(format!(
            "{}: its first request names no model; name one with -m, or as \"model\" in the body",
            args.input.display()
        ))
    })?;
    let mut names = match engine.served_model_name.as_slice() {
        [] => vec![model::short_name(target)],
        names => names.to_vec(),
    };
    let adapters = engine.model.lora.iter().map(|adapter| &adapter.name);
    let is_known = |name: &str| names.iter().chain(adapters).any(|known| known == name);
    match requested.filter(|name| !is_known(name)) {
        None => {}
        // the whole name that was loaded
        Some(name) if engine.model.given().is_none() => names.push(name.to_owned()),
        // every request would fail
        Some(name) => {
            let name = tern::formats::shown(name);
            return Err(CliError::message(format!(
                "{}: its requests name the model {name:?}, and -m loads {:?}; add --served-model-name {name:?} to answer them with it",
                args.input.display(),
                names[0]
            )));
        }
    }
    Ok((target.to_owned(), names))
}

/// `out.errors.jsonl` for `out.jsonl`.
fn errors_beside(output: &Path) -> PathBuf {
    let stem = output.file_stem().unwrap_or_default();
    let mut name = stem.to_owned();
    name.push(".errors");
    if let Some(ending) = output.extension() {
        name.push(".");
        name.push(ending);
    }
    output.with_file_name(name)
}

fn speed(before: BatchCounts, counts: BatchCounts, took: Duration) -> String {
    let done = counts.completed + counts.failed - before.completed - before.failed;
    let seconds = took.as_secs_f64().max(1e-9);
    let rate = |tokens: u64| units::thousands((tokens as f64 / seconds) as u64);
    format!(
        "{} requests in {seconds:.1} s: {:.1} requests/s, {} prompt tokens/s, {} generated tokens/s",
        requests(done),
        done as f64 / seconds,
        rate(counts.prompt_tokens),
        rate(counts.generated_tokens)
    )
}

/// Where the results are.
fn summary(files: &BatchFiles, counts: BatchCounts) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} succeeded: {}", requests(counts.completed), files.output.display())?;
    if counts.failed > 0 {
        writeln!(out, "{} failed: {}", requests(counts.failed), files.errors.display())?;
    }
    Ok(())
}

/// Progress on stderr: a bar on a terminal, otherwise a line now and then.
struct Reporter {
    bar: ProgressBar,
    lines: bool,
    begun: Instant,
    reported: std::cell::Cell<Instant>,
}

impl Reporter {
    fn new(before: BatchCounts, quiet: bool) -> Reporter {
        let bar =
            if quiet { ProgressBar::hidden() } else { load::count_bar("requests", before.total as u64) };
        bar.set_position((before.completed + before.failed) as u64);
        bar.reset_eta();
        let now = Instant::now();
        Reporter { lines: bar.is_hidden() && !quiet, bar, begun: now, reported: now.into() }
    }

    fn at(&self, counts: BatchCounts) {
        let done = counts.completed + counts.failed;
        self.bar.set_position(done as u64);
        if self.lines && self.reported.get().elapsed() >= REPORT {
            self.reported.set(Instant::now());
            let (done, all) = (requests(done), requests(counts.total));
            eprintln!(
                "tern: {done} of {all} requests, {} failed, after {:.0} s",
                counts.failed,
                self.begun.elapsed().as_secs_f64()
            );
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_beside_the_output() {
        for (output, want) in
            [("a/out.jsonl", "a/out.errors.jsonl"), ("out", "out.errors"), ("o.x.json", "o.x.errors.json")]
        {
            assert_eq!(errors_beside(Path::new(output)), Path::new(want));
        }
    }
}
