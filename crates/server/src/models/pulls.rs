//! Downloads of models: at most two at once, each on a separate thread, and each model once, however many
//! requests watch it. A download without watchers ends; the next one continues with what has
//! arrived from the hub.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::http::error::{ApiError, Result};
use crate::models::library::Library;
use crate::models::names::shortened;

/// Downloads at once.
const MAX_PULLS: usize = 2;
/// Minimum time between two reports of the same file.
const INTERVAL: Duration = Duration::from_millis(100);

/// The downloads of a server.
#[derive(Default)]
pub(crate) struct Pulls(Arc<Running>);

#[derive(Default)]
struct Running(Mutex<Vec<Arc<Pull>>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Pull>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One download.
struct Pull {
    name: String,
    history: watch::Sender<History>,
    watched: Mutex<Watched>,
}

/// What a download has reported.
#[derive(Default)]
struct History {
    /// One report per file, the last one of which changes while it is downloaded.
    reports: Vec<Value>,
    end: Option<std::result::Result<(), String>>,
}

/// Who watches a download.
#[derive(Clone, Copy, Default)]
struct Watched {
    watchers: usize,
    /// The last watcher has left, and the download ends.
    stopped: bool,
}

impl Pulls {
    /// Starts the download of a model, or watches the one that is in progress.
    pub(crate) fn watch(&self, library: &Arc<dyn Library>, name: &str) -> Result<Watcher> {
        let mut running = self.0.lock();
        if let Some(watcher) = running.iter().find(|pull| pull.name == name).and_then(Watcher::of) {
            return Ok(watcher);
        }
        if running.len() >= MAX_PULLS || running.iter().any(|pull| pull.name == name) {
            let names: Vec<String> = running.iter().map(|pull| shortened(&pull.name)).collect();
            let names = names.join(" and ");
            let message =
                format!("at most {MAX_PULLS} models are downloaded at once, now {names}: retry later");
            let busy = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message);
            return Err(busy.code("too_many_downloads").retry(10));
        }
        let pull = Arc::new(Pull {
            name: name.to_owned(),
            history: watch::Sender::default(),
            watched: Mutex::default(),
        });
        pull.report(|reports| reports.push(json!({"status": "pulling manifest"})));
        let watcher = Watcher::of(&pull).ok_or_else(ApiError::internal)?;
        let (all, own, library) = (Arc::clone(&self.0), Arc::clone(&pull), Arc::clone(library));
        let thread = thread::Builder::new().name("tern-pull".into()).spawn(move || own.run(&*library, &all));
        thread.map_err(|error| {
            let message = format!("cannot start the thread of a download: {error}");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry(5)
        })?;
        running.push(pull);
        Ok(watcher)
    }
}

impl Pull {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, change: impl FnOnce(&mut Vec<Value>)) {
        self.history.send_modify(|history| change(&mut history.reports));
    }

    /// Downloads on this thread.
    fn run(&self, library: &dyn Library, all: &Running) {
        let progress = Reports { pull: self, file: Mutex::default() };
        let pulled = catch_unwind(AssertUnwindSafe(|| library.pull(&self.name, &progress)));
        let end = pulled.unwrap_or_else(|_| Err("the download panicked; see the server's log".into()));
        if let Err(why) = &end {
            tracing::warn!(model = %self.name, %why, "the download ended");
        }
        // first, so that a request from now on starts another one
        all.lock().retain(|pull| !std::ptr::eq(&**pull, self));
        self.history.send_modify(|history| history.end = Some(end));
    }
}

/// Follows a download, which ends when its last watcher is dropped.
pub(crate) struct Watcher {
    pull: Arc<Pull>,
    changes: watch::Receiver<History>,
    /// Reports that it has returned, and the last of them.
    seen: usize,
    last: Value,
    ended: bool,
}

impl Watcher {
    /// None if the download is about to end.
    fn of(pull: &Arc<Pull>) -> Option<Watcher> {
        let mut watched = pull.watched();
        if watched.stopped {
            return None;
        }
        watched.watchers += 1;
        let (pull, changes) = (Arc::clone(pull), pull.history.subscribe());
        drop(watched);
        Some(Watcher { pull, changes, seen: 0, last: Value::Null, ended: false })
    }

    /// The next report, or the end; none after that.
    pub(crate) async fn next(&mut self) -> Option<std::result::Result<Value, String>> {
        while !self.ended {
            if let Some(report) = self.unseen() {
                return Some(report);
            }
            self.changes.changed().await.ok()?;
        }
        None
    }

    fn unseen(&mut self) -> Option<std::result::Result<Value, String>> {
        let history = self.changes.borrow_and_update();
        let changed =
            self.seen.checked_sub(1).is_some_and(|last| history.reports.get(last) != Some(&self.last));
        let next = if changed { self.seen - 1 } else { self.seen };
        if let Some(report) = history.reports.get(next) {
            (self.seen, self.last) = (next + 1, report.clone());
            return Some(Ok(self.last.clone()));
        }
        let end = history.end.clone()?;
        self.ended = true;
        Some(end.map(|()| json!({"status": "success"})))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.pull.watched().watchers -= 1;
    }
}

/// Reports the progress of a download.
struct Reports<'a> {
    pull: &'a Pull,
    file: Mutex<File>,
}

/// The file that is downloaded.
#[derive(Default)]
struct File {
    label: String,
    total: Option<u64>,
    reported: Option<Instant>,
}

impl File {
    fn report(&self, completed: u64) -> Value {
        let mut report = json!({"status": format!("pulling {}", self.label), "digest": self.label});
        if let Some(total) = self.total {
            report["total"] = total.into();
            report["completed"] = completed.into();
        }
        report
    }
}

impl tern::Progress for Reports<'_> {
    fn begin(&self, label: &str, total: Option<u64>) {
        let Ok(mut file) = self.file.lock() else { return };
        *file = File { label: label.to_owned(), total, reported: Some(Instant::now()) };
        self.pull.report(|reports| reports.push(file.report(0)));
    }

    fn at(&self, done: u64) {
        let Ok(mut file) = self.file.lock() else { return };
        let complete = file.total == Some(done);
        if complete || file.reported.is_none_or(|at| at.elapsed() >= INTERVAL) {
            file.reported = Some(Instant::now());
            self.pull.report(|reports| {
                let is_last = reports.last().is_some_and(|last| last["digest"] == *file.label);
                reports.truncate(reports.len() - usize::from(is_last));
                reports.push(file.report(done));
            });
        }
    }

    fn warn(&self, message: &str) {
        self.pull.report(|reports| reports.push(json!({"status": message})));
    }

    fn stopped(&self) -> bool {
        let mut watched = self.pull.watched();
        watched.stopped |= watched.watchers == 0;
        watched.stopped
    }
}
