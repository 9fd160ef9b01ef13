//! The server's threads: either all of them start, or the command fails with the reason.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::{CliError, CliResult};

/// Threads live as long as the server: the system might refuse to start one again.
const KEEP_ALIVE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long the first task may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A runtime with one thread per core for connections, and at least one for CPU-bound work.
pub(crate) fn start() -> CliResult<Runtime> {
    let workers = thread::available_parallelism().map_or(2, usize::from);
    // one of the two others loads the model
    probe(workers + 2).map_err(|(given, why)| {
        CliError::message(format!(
            "the server needs {} threads in addition to the model's, and only {given} could be started: {why}; raise the \
             limit (ulimit -u or -v, or the container's process limit)",
            workers + 2
        ))
    })?;
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(workers).thread_keep_alive(KEEP_ALIVE).enable_all().build()?;
    // tokio ignores threads that could not be started, and their tasks would wait forever: this detects it
    let begun = runtime
        .block_on(async { tokio::time::timeout(START_TIMEOUT, tokio::task::spawn_blocking(|| ())).await });
    match begun {
        Ok(Ok(())) => Ok(runtime),
        _ => Err(CliError::message("the server's threads did not start: the system refuses to start more")),
    }
}

/// Starts `threads` threads at once and ends them. On failure, returns how many started, and why no more.
fn probe(threads: usize) -> Result<(), (usize, io::Error)> {
    let mut running = Vec::with_capacity(threads);
    for started in 0..threads {
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("tern-probe".into()).spawn(move || ended.recv().is_ok());
        running.push((end, thread.map_err(|why| (started, why))?));
    }
    for (end, thread) in running {
        drop(end);
        let _ = thread.join();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_runs_tasks() {
        let runtime = start().unwrap();
        assert_eq!(runtime.block_on(runtime.spawn_blocking(|| 7)).unwrap(), 7);
    }
}
