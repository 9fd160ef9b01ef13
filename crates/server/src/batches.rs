//! The batches of `/v1/batches`: their records in the folder of the files, and a thread per API key that runs
//! one after the other. A batch that a shutdown has interrupted continues with the next server.

mod job;
mod record;

pub(crate) use record::{BatchRecord, NewBatch};

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use axum::http::StatusCode;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::job::Job;
use self::record::Status;
use crate::batch::BatchStop;
use crate::file_store::{FileStore, failed};
use crate::http::error::{ApiError, Result};
use crate::models::names::shortened;
use crate::request::prompt::now;
use crate::state::App;

/// Batches of a key that have not ended.
const MAX_OPEN: usize = 100;
/// Batches of a key that have ended and are remembered: the oldest are forgotten.
const MAX_ENDED: usize = 1000;

/// The batches of a server.
pub(crate) struct Batches {
    pub(crate) files: Arc<FileStore>,
    state: Mutex<State>,
    /// The number of threads that run batches.
    running: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    /// By id.
    batches: BTreeMap<String, Entry>,
    /// The owners whose batches a thread runs.
    owners: BTreeSet<String>,
}

struct Entry {
    record: BatchRecord,
    /// Stops its run.
    stop: watch::Sender<BatchStop>,
}

impl Batches {
    /// The batches that earlier servers have left in the folder.
    pub(crate) fn open(files: Arc<FileStore>) -> io::Result<Batches> {
        let records = files.records::<BatchRecord>("batch_")?;
        let entry =
            |record: BatchRecord| (record.id.clone(), Entry { record, stop: watch::Sender::default() });
        let state = State { batches: records.into_iter().map(entry).collect(), owners: BTreeSet::new() };
        Ok(Batches { files, state: Mutex::new(state), running: watch::Sender::default() })
    }

    /// Continues the batches that have not ended.
    pub(crate) fn resume(self: &Arc<Self>, app: &Arc<App>) {
        let open = |entry: &Entry| (!entry.record.has_ended()).then(|| entry.record.owner.clone());
        let owners: BTreeSet<String> = self.lock().batches.values().filter_map(open).collect();
        for owner in owners {
            if let Err(error) = self.start(app, &owner) {
                tracing::error!(%error, "batches cannot be continued");
            }
        }
    }

    /// Adds a batch, which runs after the earlier ones of its owner.
    pub(crate) fn create(
        self: &Arc<Self>,
        app: &Arc<App>,
        owner: &str,
        new: NewBatch,
    ) -> Result<BatchRecord> {
        self.files.get(owner, &new.input_file_id)?;
        let open = self.list(owner).iter().filter(|batch| !batch.has_ended()).count();
        if open >= MAX_OPEN {
            let message =
                format!("{open} batches have not ended, the limit is {MAX_OPEN}: retry when one has");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                .code("too_many_batches")
                .retry(60));
        }
        let record = BatchRecord::new(owner, new);
        self.files.write(&record.id, &record).map_err(|error| failed("write", &error))?;
        let entry = Entry { record: record.clone(), stop: watch::Sender::default() };
        self.lock().batches.insert(record.id.clone(), entry);
        self.forget_oldest(owner);
        self.start(app, owner).map_err(|error| failed("start a thread for", &error))?;
        Ok(record)
    }

    pub(crate) fn get(&self, owner: &str, id: &str) -> Result<BatchRecord> {
        let state = self.lock();
        let found = state.batches.get(id).filter(|entry| entry.record.owner == owner);
        found.map(|entry| entry.record.clone()).ok_or_else(|| not_found(id))
    }

    /// The batches of this owner, oldest first.
    pub(crate) fn list(&self, owner: &str) -> Vec<BatchRecord> {
        let state = self.lock();
        let records = state.batches.values().map(|entry| &entry.record);
        let mut list: Vec<BatchRecord> = records.filter(|record| record.owner == owner).cloned().collect();
        list.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        list
    }

    /// Cancels a batch: requests in flight end, and what is answered becomes its output.
    pub(crate) fn cancel(&self, owner: &str, id: &str) -> Result<BatchRecord> {
        let batch = self.get(owner, id)?;
        if !matches!(batch.status, Status::Validating | Status::InProgress | Status::Cancelling) {
            let message = format!("a batch that is {} cannot be cancelled", batch.status.name());
            return Err(ApiError::new(StatusCode::CONFLICT, message).code("batch_not_cancellable"));
        }
        let record = self.update(id, |record| {
            record.status = Status::Cancelling;
            record.cancelling_at.get_or_insert_with(now);
        });
        if let Some(entry) = self.lock().batches.get(id) {
            entry.stop.send_replace(BatchStop::Now);
        }
        record.map_err(|error| failed("write", &error))
    }

    /// The batch that reads a file and has not ended.
    pub(crate) fn reader(&self, file: &str) -> Option<String> {
        let state = self.lock();
        let mut records = state.batches.values().map(|entry| &entry.record);
        let reader = records.find(|record| record.input_file_id == file && !record.has_ended());
        reader.map(|record| record.id.clone())
    }

    /// Waits until no batch runs.
    pub(crate) async fn idle(&self) {
        // the sender lives as long as this
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// Changes a record, here and on disk.
    fn update(&self, id: &str, change: impl FnOnce(&mut BatchRecord)) -> io::Result<BatchRecord> {
        let mut state = self.lock();
        let Some(entry) = state.batches.get_mut(id) else { return Err(io::ErrorKind::NotFound.into()) };
        change(&mut entry.record);
        let record = entry.record.clone();
        self.files.write(id, &record)?; // under the lock: the last change is the one on disk
        Ok(record)
    }

    /// Starts the thread that runs the batches of an owner, unless there is one.
    fn start(self: &Arc<Self>, app: &Arc<App>, owner: &str) -> io::Result<()> {
        if !self.lock().owners.insert(owner.to_owned()) {
            return Ok(());
        }
        self.running.send_modify(|running| *running += 1);
        let (batches, app, runtime) = (Arc::clone(self), Arc::clone(app), Handle::current());
        let name = owner.to_owned();
        let run = move || {
            let mut thread = OwnerThread { batches: &batches, owner: &name, listed: true };
            while let Some((record, stop)) = thread.next() {
                let job = Job { batches: &batches, app: &app, runtime: &runtime, record, stop };
                if !job.run() {
                    return; // the server stops
                }
            }
        };
        let started = thread::Builder::new().name("tern-batch".into()).spawn(run);
        started.map(|_| ()).inspect_err(|_| drop(OwnerThread { batches: self, owner, listed: true }))
    }

    fn forget_oldest(&self, owner: &str) {
        let ended: Vec<BatchRecord> = self.list(owner).into_iter().filter(BatchRecord::has_ended).collect();
        for record in ended.iter().rev().skip(MAX_ENDED) {
            self.lock().batches.remove(&record.id);
            let _ = std::fs::remove_file(self.files.path(&record.id, ".json"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that runs the batches of an owner. Dropping it is its end, also by a panic.
struct OwnerThread<'a> {
    batches: &'a Batches,
    owner: &'a str,
    /// The owner is among those that have a thread.
    listed: bool,
}

impl OwnerThread<'_> {
    /// The next batch. Without one, another thread may be started from now on.
    fn next(&mut self) -> Option<(BatchRecord, watch::Sender<BatchStop>)> {
        let mut state = self.batches.lock();
        let of_owner = state.batches.values().filter(|entry| entry.record.owner == self.owner);
        let open = of_owner.filter(|entry| !entry.record.has_ended());
        let next = open.min_by_key(|entry| (entry.record.created_at, entry.record.id.clone()));
        let next = next.map(|entry| (entry.record.clone(), entry.stop.clone()));
        if next.is_none() {
            state.owners.remove(self.owner);
            self.listed = false;
        }
        next
    }
}

impl Drop for OwnerThread<'_> {
    fn drop(&mut self) {
        if self.listed {
            self.batches.lock().owners.remove(self.owner);
        }
        self.batches.running.send_modify(|running| *running -= 1);
    }
}

fn not_found(id: &str) -> ApiError {
    let message = format!("no batch {:?}", shortened(id));
    ApiError::new(StatusCode::NOT_FOUND, message).code("batch_not_found")
}
