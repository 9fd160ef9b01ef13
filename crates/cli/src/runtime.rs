//! The server's own threads: all of them run, or the program ends with a sentence that says why not.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::error::{CliError, CliResult};

/// Threads stay for the life of the server: one that ended might not be given again.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long the first work may take to begin.
const START: Duration = Duration::from_secs(30);

/// A runtime with a thread per core for connections, and one at least for what takes a processor's time.
pub(crate) fn start() -> CliResult<Runtime> {
    let workers = thread::available_parallelism().map_or(2, usize::from);
    // and one to load the model
    probe(workers + 2).map_err(|(given, why)| {
        CliError::said(format!(
            "the server needs {} threads beside those of the model and the system gave {given}: {why}; raise its limit \
             (ulimit -u or -v, or the container's limit of processes)",
            workers + 2
        ))
    })?;
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(workers).thread_keep_alive(FOREVER).enable_all().build()?;
    // tokio goes on without threads that it is refused, and what waits for them waits for ever: this waits behind them
    let begun =
        runtime.block_on(async { tokio::time::timeout(START, tokio::task::spawn_blocking(|| ())).await });
    match begun {
        Ok(Ok(())) => Ok(runtime),
        _ => Err(CliError::said("the threads of the server did not start: the system gives no more of them")),
    }
}

/// Starts so many threads at once, and lets them end. Where that fails, how many there were and why.
fn probe(threads: usize) -> Result<(), (usize, io::Error)> {
    let mut running = Vec::with_capacity(threads);
    for given in 0..threads {
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("tern-probe".into()).spawn(move || ended.recv().is_ok());
        running.push((end, thread.map_err(|why| (given, why))?));
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
    fn a_runtime_works_at_once() {
        let runtime = start().unwrap();
        assert_eq!(runtime.block_on(runtime.spawn_blocking(|| 7)).unwrap(), 7);
    }
}
