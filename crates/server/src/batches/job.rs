//! One batch on its thread: validated, answered, and its results made files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Batches;
use super::record::{BatchRecord, Status, line_error};
use crate::batch::BatchRoutes;
use crate::batch::{Batch, BatchCounts, BatchError, BatchFiles, BatchRules, BatchStop, ENDPOINTS};
use crate::file_store::{FileRecord, expiry, file_id};
use crate::http::auth::Key;
use crate::request::prompt::now;
use crate::state::{App, Stop};

/// Maximum number of lines, as OpenAI has it.
const MAX_LINES: usize = 50_000;
/// Lines in flight before a model is loaded.
const IN_FLIGHT: usize = 32;
/// Time until a disk that refused something is tried again.
const RETRY: Duration = Duration::from_secs(20);

/// A batch that a thread runs.
pub(super) struct Job<'a> {
    pub(super) batches: &'a Arc<Batches>,
    pub(super) app: &'a Arc<App>,
    pub(super) runtime: &'a Handle,
    pub(super) record: BatchRecord,
    pub(super) stop: watch::Sender<BatchStop>,
}

impl Job<'_> {
    /// Runs the batch to its end; false if the server stops before, and the next one continues.
    pub(super) fn run(&self) -> bool {
        loop {
            if self.app.stopping() > Stop::No {
                return false;
            }
            match self.attempt() {
                Ok(ended) => return ended,
                Err(error) => {
                    // a full disk: nothing is lost, and the batch continues when there is space
                    tracing::error!(batch = self.record.id, %error, "a batch waits for its files");
                    if self.has_expired() {
                        let failed = self.batches.update(&self.record.id, |record| {
                            record.errors = vec![json!({"code": "storage", "message": error.to_string(), "line": null, "param": null})];
                            record.end(Status::Failed);
                        });
                        if failed.is_ok() {
                            return true;
                        }
                    }
                    let stopped = self.app.stopped(Stop::Draining);
                    let _ = self.runtime.block_on(async { timeout(RETRY, stopped).await });
                }
            }
        }
    }

    /// As [`Job::run`]; a failure of the disk is an error.
    fn attempt(&self) -> Result<bool, BatchError> {
        let files = self.files();
        let ending =
            self.batches.get(&self.record.owner, &self.record.id).ok().and_then(|record| record.ending);
        if let Some(last) = ending {
            return self.finish(&files, last).map(|()| true);
        }
        let rules = BatchRules {
            endpoint: ENDPOINTS.iter().copied().find(|endpoint| *endpoint == self.record.endpoint),
            max_lines: MAX_LINES,
            max_line_bytes: self.app.config.max_body,
        };
        let mut batch = match Batch::open(files.clone(), rules) {
            Ok(batch) => batch,
            Err(BatchError::Lines { errors, .. }) => {
                let errors = errors.iter().map(line_error).collect();
                self.update(|record| {
                    record.errors = errors;
                    record.end(Status::Failed);
                })?;
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        if self.status() == Status::Validating {
            self.update(|record| {
                record.status = Status::InProgress;
                record.in_progress_at.get_or_insert_with(now);
            })?;
        }
        self.count(batch.counts());
        let mut counts = batch.counts();
        if self.status() == Status::InProgress && !counts.is_complete() && !self.has_expired() {
            counts = match self.answer(&mut batch) {
                Ok(counts) => counts,
                Err(BatchError::Engine(why)) => {
                    tracing::error!(batch = self.record.id, why, "a batch was interrupted");
                    return Ok(false); // the server ends with its engine
                }
                Err(error) => return Err(error),
            };
        }
        let last = match self.status() {
            Status::Cancelling => Status::Cancelled,
            _ if counts.is_complete() => Status::Completed,
            _ if self.has_expired() => {
                counts =
                    batch.fail_rest("batch_expired", "the batch expired before this request was answered")?;
                Status::Expired
            }
            _ => return Ok(false), // the server stops
        };
        self.count(counts);
        drop(batch); // its files are closed
        self.finish(&files, last)?;
        Ok(true)
    }

    /// Answers the lines until the batch is complete, cancelled or expired, or the server stops.
    fn answer(&self, batch: &mut Batch) -> Result<BatchCounts, BatchError> {
        let key = Key::from_digits(&self.record.owner).unwrap_or(Key::NONE);
        let server = BatchRoutes::new(self.app, key);
        let loaded = self.app.registry.loaded();
        let in_flight = loaded.iter().map(|served| served.model.handle().limits().max_seqs).max();
        let progress = |counts| self.count(counts);
        let stop = |how: BatchStop| {
            self.stop.send_if_modified(|stop| {
                how > *stop && {
                    *stop = how;
                    true
                }
            });
        };
        self.runtime.block_on(async {
            let run = batch.run(&server, in_flight.unwrap_or(IN_FLIGHT), self.stop.subscribe(), progress);
            let left = Duration::from_secs(self.record.expires_at.saturating_sub(now()));
            let end = async {
                tokio::select! {
                    () = self.app.stopped(Stop::Now) => {}
                    () = sleep(left) => {}
                }
            };
            let (mut run, mut end) = (std::pin::pin!(run), std::pin::pin!(end));
            let mut drain = std::pin::pin!(self.app.stopped(Stop::Draining));
            let (mut draining, mut ended) = (false, false);
            loop {
                tokio::select! {
                    counts = run.as_mut() => return counts,
                    () = drain.as_mut(), if !draining => {
                        draining = true;
                        stop(BatchStop::Draining);
                    }
                    () = end.as_mut(), if !ended => {
                        ended = true;
                        stop(BatchStop::Now);
                    }
                }
            }
        })
    }

    /// Makes the results files, and ends the batch. What is done already is not done again.
    fn finish(&self, files: &BatchFiles, last: Status) -> Result<(), BatchError> {
        let mut record = self.record.clone();
        let has_results = |path: &PathBuf| path.metadata().is_ok_and(|results| results.len() > 0);
        let (output, errors) = (has_results(&files.output), has_results(&files.errors));
        self.update(|current| {
            if current.ending.is_none() {
                current.ending = Some(last);
                current.output_file_id = output.then(file_id);
                current.error_file_id = errors.then(file_id);
            }
            if last == Status::Completed {
                current.status = Status::Finalizing;
                current.finalizing_at.get_or_insert_with(now);
            }
            record = current.clone();
        })?;
        let results = [
            (&files.output, record.output_file_id, "output"),
            (&files.errors, record.error_file_id, "error"),
        ];
        for (path, id, kind) in results {
            if let Some(id) = id.filter(|_| path.exists()) {
                let name = format!("{}_{kind}.jsonl", record.id);
                let file = FileRecord::new(&record.owner, name, "batch_output", expiry(record.keep_results));
                let file = FileRecord { id, ..file };
                self.batches.files.adopt(path, file).map_err(|error| file_error(path.clone(), &error))?;
            }
            let _ = std::fs::remove_file(path); // empty, or missing
        }
        self.update(|record| record.end(last))
    }

    /// The input, and the working files of the results.
    fn files(&self) -> BatchFiles {
        let (files, id) = (&self.batches.files, &self.record.id);
        BatchFiles {
            input: files.content(&self.record.input_file_id),
            output: files.path(id, ".output"),
            errors: files.path(id, ".errors"),
        }
    }

    fn status(&self) -> Status {
        let found = self.batches.get(&self.record.owner, &self.record.id);
        found.map_or(Status::Failed, |record| record.status)
    }

    fn has_expired(&self) -> bool {
        self.record.expires_at <= now()
    }

    /// Sets the counts that clients see.
    fn count(&self, counts: BatchCounts) {
        let mut state = self.batches.lock();
        if let Some(entry) = state.batches.get_mut(&self.record.id) {
            entry.record.request_counts = counts.into();
        }
    }

    fn update(&self, change: impl FnOnce(&mut BatchRecord)) -> Result<(), BatchError> {
        let updated = self.batches.update(&self.record.id, change);
        updated
            .map(|_| ())
            .map_err(|error| file_error(self.batches.files.path(&self.record.id, ".json"), &error))
    }
}

fn file_error(path: PathBuf, error: &io::Error) -> BatchError {
    BatchError::File(path, error.to_string())
}
