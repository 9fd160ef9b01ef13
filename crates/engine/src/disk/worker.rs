//! The thread that reads and writes files, and its bounded queues. Reads go first: a request waits for them.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::DiskLog;
use super::file::{self, Item};
use super::folder::Folder;
use super::index::Index;
use super::key::Key;

/// Bytes that wait to be written at most; what would exceed them is dropped.
const QUEUED_BYTES: usize = 256 << 20;

/// Lines about damaged files per process at most.
const MOST_LINES: usize = 10;

/// A page or a state to write.
pub(crate) struct WriteJob {
    pub(crate) model: Key,
    pub(crate) item: Item,
    pub(crate) payload: Vec<u8>,
    /// The counts of its engine.
    pub(crate) counters: Arc<Counters>,
}

/// Files to read, and who gets them.
pub(crate) struct ReadJob {
    pub(crate) model: Key,
    /// Each with the length of its payload.
    pub(crate) items: Vec<(Item, usize)>,
    pub(crate) reply: Box<dyn FnOnce(Vec<Read>) + Send>,
}

/// A file that was to be read; the payload is `None` if it is missing or wrong.
pub(crate) struct Read {
    pub(crate) item: Item,
    pub(crate) payload: Option<Vec<u8>>,
}

/// What one engine has on disk.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Files written.
    pub(crate) written: AtomicU64,
    /// Writes that wait or are in progress.
    pub(crate) pending: AtomicU64,
}

/// What the thread has to do.
pub(crate) struct Queue {
    folder: Folder,
    log: DiskLog,
    index: Mutex<Index>,
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    reads: VecDeque<ReadJob>,
    writes: VecDeque<WriteJob>,
    /// Bytes of `writes`, and of the write in progress.
    bytes: usize,
    /// Nothing is written any more, because a write failed.
    full: bool,
    /// Lines about damaged files so far.
    lines: usize,
    ended: bool,
}

enum Job {
    Read(ReadJob),
    Write(WriteJob),
}

impl Queue {
    pub(super) fn new(folder: Folder, index: Index, log: DiskLog) -> Queue {
        let queue =
            Queue { folder, log, index: Mutex::new(index), jobs: Mutex::default(), changed: Condvar::new() };
        queue.make_room(0); // the limit may be smaller than before
        queue
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Which files there are.
    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        // nothing panics while it is locked
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, jobs: MutexGuard<'a, Jobs>) -> MutexGuard<'a, Jobs> {
        self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a page of this many bytes would be written: not if it exists, or if too many others wait.
    pub(crate) fn wants(&self, item: &Item, bytes: usize) -> bool {
        if self.index().touch(&item.id) {
            return false;
        }
        let jobs = self.jobs();
        !jobs.full && jobs.bytes.saturating_add(bytes) <= QUEUED_BYTES.max(bytes)
    }

    /// Writes a page, later.
    pub(crate) fn write(&self, job: WriteJob) {
        let mut jobs = self.jobs();
        if jobs.ended || jobs.full {
            return;
        }
        job.counters.pending.fetch_add(1, Ordering::Relaxed);
        jobs.bytes += job.payload.len();
        jobs.writes.push_back(job);
        drop(jobs);
        self.changed.notify_all();
    }

    /// Waits until there is room for a page of this many bytes; false if there is none at this time.
    pub(crate) fn wait_for_room(&self, bytes: usize, until: Instant) -> bool {
        self.wait_while(until, |jobs| {
            !jobs.full && jobs.bytes.saturating_add(bytes) > QUEUED_BYTES.max(bytes)
        })
    }

    /// Waits until all that an engine wrote is on disk; false if it is not at this time.
    pub(crate) fn wait_for_writes(&self, counters: &Counters, until: Instant) -> bool {
        self.wait_while(until, |jobs| !jobs.full && counters.pending.load(Ordering::Relaxed) > 0)
    }

    fn wait_while(&self, until: Instant, waits: impl Fn(&Jobs) -> bool) -> bool {
        let mut jobs = self.jobs();
        while waits(&jobs) && !jobs.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            jobs = self.changed.wait_timeout(jobs, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !jobs.full
    }

    /// Reads files, later.
    pub(crate) fn read(&self, job: ReadJob) {
        self.jobs().reads.push_back(job);
        self.changed.notify_all();
    }

    /// Ends the thread after the file in hand.
    pub(super) fn end(&self) {
        self.jobs().ended = true;
        self.changed.notify_all();
    }

    /// Runs jobs until the end.
    pub(super) fn work(&self) {
        while let Some(job) = self.next() {
            match job {
                Job::Read(job) => self.run_read(job),
                Job::Write(job) => self.run_write(job),
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if jobs.ended {
                return None;
            }
            if let Some(job) = jobs.reads.pop_front() {
                return Some(Job::Read(job));
            }
            if let Some(job) = jobs.writes.pop_front() {
                return Some(Job::Write(job));
            }
            jobs = self.wait(jobs);
        }
    }

    fn run_read(&self, job: ReadJob) {
        let ReadJob { model, items, reply } = job;
        let read = |(item, payload): (Item, usize)| {
            let payload = match self.folder.read(&model, &item, payload) {
                Ok(payload) => Some(payload),
                Err(e) => {
                    self.reject(&item, &e);
                    None
                }
            };
            Read { item, payload }
        };
        reply(items.into_iter().map(read).collect());
    }

    /// Removes a file that is not what it is named.
    fn reject(&self, item: &Item, why: &io::Error) {
        let known = self.index().has(&item.id);
        self.index().remove(&item.id);
        // it may have been removed for another one since it was found
        if !known || why.kind() == io::ErrorKind::NotFound {
            return;
        }
        self.folder.remove(&item.id);
        let lines = {
            let mut jobs = self.jobs();
            jobs.lines += 1;
            jobs.lines
        };
        let name = item.id.name();
        match lines.cmp(&MOST_LINES) {
            std::cmp::Ordering::Less => (self.log)(&format!("cache file {name} is skipped: {why}")),
            std::cmp::Ordering::Equal => {
                (self.log)(&format!("cache file {name} is skipped: {why}; further ones are not logged"));
            }
            std::cmp::Ordering::Greater => {}
        }
    }

    fn run_write(&self, job: WriteJob) {
        let WriteJob { model, item, payload, counters } = job;
        let written = match self.jobs().full {
            true => Ok(false),
            false => self.write_now(&model, &item, &payload),
        };
        let mut jobs = self.jobs();
        jobs.bytes -= payload.len();
        counters.pending.fetch_sub(1, Ordering::Relaxed);
        match written {
            Ok(written) => {
                counters.written.fetch_add(u64::from(written), Ordering::Relaxed);
            }
            Err(why) => {
                jobs.full = true;
                let path = self.folder.path().display();
                (self.log)(&format!(
                    "{path}: {why}; nothing more is written to this cache until the next start"
                ));
            }
        }
        drop(jobs);
        self.changed.notify_all();
    }

    /// Writes a file, if it is new and fits; older ones make room.
    fn write_now(&self, model: &Key, item: &Item, payload: &[u8]) -> io::Result<bool> {
        let bytes = file::length(item, payload.len());
        let most = self.index().most_bytes();
        if bytes > most || self.index().has(&item.id) {
            return Ok(false);
        }
        self.make_room(bytes);
        self.folder.write(model, item, payload)?;
        self.index().add(item.id, bytes);
        Ok(true)
    }

    fn make_room(&self, bytes: u64) {
        loop {
            let mut index = self.index();
            let Some(oldest) = index.excess(bytes) else { return };
            index.remove(&oldest);
            drop(index);
            self.folder.remove(&oldest);
        }
    }
}
