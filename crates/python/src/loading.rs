//! Loading on a separate thread, while the thread that waits shows the progress and handles signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tern::{LoadOptions, Model};

/// Interval in which progress is shown and signals are handled.
const TICK: Duration = Duration::from_millis(100);

create_exception!(tern_llm, Error, PyException, "What the package raises besides wrong types and values.");
create_exception!(tern_llm, LoadError, Error, "A model that cannot be loaded, and why.");

/// The piece of work that a load does.
#[derive(Clone, Default)]
struct Work {
    label: String,
    done: u64,
    /// 0 if it is not known.
    total: u64,
}

/// What the loading thread has reported.
#[derive(Default)]
struct Report {
    work: Mutex<Work>,
    warnings: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Report {
    fn change(&self, change: impl FnOnce(&mut Work)) {
        change(&mut self.work.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The loading thread's side.
struct Reporter(Arc<Report>);

impl tern::Progress for Reporter {
    fn begin(&self, label: &str, total: Option<u64>) {
        self.0.change(|work| *work = Work { label: label.into(), done: 0, total: total.unwrap_or(0) });
    }

    fn at(&self, done: u64) {
        self.0.change(|work| work.done = done);
    }

    fn continues(&self, label: &str) {
        self.0.change(|work| work.label = label.into());
    }

    fn end(&self) {
        self.0.change(|work| *work = Work::default());
    }

    fn warn(&self, message: &str) {
        self.0.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(message.into());
    }

    fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }
}

/// Ends the load when it is dropped.
struct Stop(Arc<Report>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Loads a model. `progress` is called with a label, and the bytes that are done and all bytes (0 if that is
/// not known); `warn` with a sentence. What either raises, or a signal, ends the load.
pub(crate) fn load(
    py: Python<'_>,
    name: &str,
    options: LoadOptions,
    progress: Option<&Bound<'_, PyAny>>,
    warn: &Bound<'_, PyAny>,
) -> PyResult<Model> {
    let report = Arc::<Report>::default();
    let _stop = Stop(Arc::clone(&report));
    let (sender, loaded) = channel();
    let loaded = Mutex::new(loaded);
    let (reporter, wanted) = (Reporter(Arc::clone(&report)), name.to_owned());
    thread::Builder::new()
        .name("tern-load".into())
        .spawn(move || {
            // the receiver is gone if the load was stopped
            let _ = sender.send(Model::load_showing(&wanted, &options, &reporter));
        })
        .map_err(|error| LoadError::new_err(format!("{name}: cannot start the loading thread: {error}")))?;
    let mut shown = String::new();
    loop {
        let ended = tick(py, &loaded);
        for warning in std::mem::take(&mut *report.warnings.lock().unwrap_or_else(PoisonError::into_inner)) {
            warn.call1((warning,))?;
        }
        match ended {
            Some(Ok(model)) => return Ok(model),
            Some(Err(Some(error))) => return Err(LoadError::new_err(error.to_string())),
            Some(Err(None)) => {
                return Err(LoadError::new_err(format!(
                    "{name}: loading panicked; see the message on stderr"
                )));
            }
            None => {}
        }
        py.check_signals()?;
        let Work { label, done, total } = report.work.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(progress) = progress
            && (!label.is_empty() || !shown.is_empty())
        {
            progress.call1((&label, done, total))?;
            shown = label;
        }
    }
}

/// Waits for the end of the load, but not longer than a tick. A panic is an error without a message.
fn tick(
    py: Python<'_>,
    loaded: &Mutex<Receiver<Result<Model, tern::Error>>>,
) -> Option<Result<Model, Option<tern::Error>>> {
    py.detach(|| {
        let loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        match loaded.recv_timeout(TICK) {
            Ok(loaded) => Some(loaded.map_err(Some)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(None)),
        }
    })
}
