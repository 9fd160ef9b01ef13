//! The engine's side of the cache on disk: bytes are copied between two steps, few enough that a step is not
//! noticeably later, and files are read ahead for the sequences that wait for them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Counters, DiskCache, DiskUse, Item, Key, Keys, Queue, Read, ReadJob, WriteJob};
use crate::pages::{Evicted, Install};
use crate::{CacheFormat, EngineError, RequestId, Runner, Scheduler, Stats};

/// Bytes of the files that are requested together.
const PART: usize = 16 << 20;
/// Parts of one sequence that are requested or read and not yet copied.
const PARTS_AHEAD: usize = 4;
/// Bytes that are copied into pages between two steps.
const PER_STEP: usize = 64 << 20;
/// Sequences that wait for the disk at the same time.
const MOST_RESTORING: usize = 2;
/// A sequence waits no longer than this for its next file: what is missing is computed.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the end of an engine may take to write what is cached.
pub(crate) const LAST_WRITES: Duration = Duration::from_secs(30);

/// Files that were read for a sequence.
pub(crate) struct Part {
    id: RequestId,
    /// Which of the reads for this id it belongs to.
    serial: u64,
    files: Vec<Read>,
}

/// The cache on disk of one engine.
pub(crate) struct EngineDisk {
    cache: DiskCache,
    model: Key,
    format: CacheFormat,
    counters: Arc<Counters>,
    restoring: Vec<Restoring>,
    arrived: VecDeque<Part>,
    serials: u64,
}

/// A sequence that waits for files.
struct Restoring {
    id: RequestId,
    serial: u64,
    /// Not requested yet.
    items: VecDeque<Item>,
    /// Parts that are requested and not copied.
    parts: usize,
    /// When the last part arrived.
    since: Instant,
}

/// The counts of the cache on disk, as long as it is open.
pub(crate) struct DiskCounts {
    queue: Weak<Queue>,
    counters: Arc<Counters>,
}

impl DiskCounts {
    /// Adds what is on disk to the counts.
    pub(crate) fn count(&self, stats: Stats) -> Stats {
        let disk_writes = self.counters.written.load(Ordering::Relaxed);
        let disk_queued = self.counters.pending.load(Ordering::Relaxed);
        let known = DiskUse { files: stats.disk_files, bytes: stats.disk_bytes };
        let usage = self.queue.upgrade().map_or(known, |queue| queue.index().usage());
        Stats { disk_writes, disk_queued, disk_files: usage.files, disk_bytes: usage.bytes, ..stats }
    }
}

/// Passes what was read to the engine.
pub(crate) type Deliver = Arc<dyn Fn(Part) + Send + Sync>;

impl EngineDisk {
    pub(crate) fn new(cache: DiskCache, format: CacheFormat) -> EngineDisk {
        EngineDisk {
            cache,
            model: Key(format.model),
            format,
            counters: Arc::default(),
            restoring: vec![],
            arrived: VecDeque::new(),
            serials: 0,
        }
    }

    pub(crate) fn keys(&self) -> Keys {
        Keys::new(self.format.model, self.format.adapters)
    }

    /// What it counts, for readers that may outlive it.
    pub(crate) fn counts(&self) -> DiskCounts {
        DiskCounts { queue: self.cache.weak_queue(), counters: Arc::clone(&self.counters) }
    }

    /// Passes what has left memory to the disk, before a step overwrites it.
    pub(crate) fn write_evicted(
        &self,
        scheduler: &mut Scheduler,
        runner: &mut dyn Runner,
    ) -> Result<(), EngineError> {
        scheduler.take_evicted().into_iter().try_for_each(|evicted| self.write(evicted, runner))
    }

    fn write(&self, evicted: Evicted, runner: &mut dyn Runner) -> Result<(), EngineError> {
        let Evicted { place, item } = evicted;
        let bytes = self.format.bytes_of(place.part);
        if self.cache.queue().wants(&item, bytes) {
            let mut payload = Vec::with_capacity(bytes);
            runner.read_cache(place, &mut payload)?;
            let counters = Arc::clone(&self.counters);
            self.cache.queue().write(WriteJob { model: self.model, item, payload, counters });
        }
        Ok(())
    }

    /// Writes all that is cached, the most recently used first, for at most `LAST_WRITES`.
    pub(crate) fn write_all(
        &self,
        scheduler: &Scheduler,
        runner: &mut dyn Runner,
    ) -> Result<(), EngineError> {
        let until = Instant::now() + LAST_WRITES;
        let queue = self.cache.queue();
        let most = queue.index().most_bytes();
        let mut total = 0;
        for evicted in scheduler.all_cached() {
            let bytes = self.format.bytes_of(evicted.place.part);
            total += super::file::length(&evicted.item, bytes);
            if total > most || !queue.wait_for_room(bytes, until) {
                break;
            }
            self.write(evicted, runner)?;
        }
        queue.wait_for_writes(&self.counters, until);
        Ok(())
    }

    /// Whether something can be copied into pages now.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// How long the engine may sleep although sequences wait for the disk.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let waited = self.restoring.iter().map(|restoring| restoring.since.elapsed()).max()?;
        Some(PATIENCE.saturating_sub(waited) + Duration::from_millis(1))
    }

    /// Takes what was read.
    pub(crate) fn take(&mut self, part: Part) {
        self.arrived.push_back(part);
    }

    /// Copies what has arrived into pages, and requests the next files; sequences whose files are all there,
    /// or do not come, may start.
    pub(crate) fn restore(
        &mut self,
        scheduler: &mut Scheduler,
        runner: &mut dyn Runner,
        deliver: &Deliver,
    ) -> Result<(), EngineError> {
        let mut copied = 0;
        while copied < PER_STEP
            && let Some(part) = self.arrived.pop_front()
        {
            let same = |r: &Restoring| r.id == part.id && r.serial == part.serial;
            let Some(at) = self.restoring.iter().position(same) else { continue };
            self.restoring[at].parts -= 1;
            self.restoring[at].since = Instant::now();
            for Read { item, payload } in part.files {
                let installed = match &payload {
                    None => Some(Install::Impossible),
                    Some(_) => scheduler.install(part.id, &item),
                };
                self.write_evicted(scheduler, runner)?; // before the place is overwritten
                match (installed, payload) {
                    (Some(Install::Into(place)), Some(payload)) => {
                        copied += payload.len();
                        runner.write_cache(place, &payload)?;
                    }
                    (Some(Install::Present), _) => {}
                    _ => {
                        // nothing after it could be used
                        self.restoring[at].items.clear();
                        break;
                    }
                }
            }
        }
        let arrived = &self.arrived;
        let late = |restoring: &Restoring| {
            restoring.since.elapsed() >= PATIENCE && !arrived.iter().any(|part| part.id == restoring.id)
        };
        let done = |r: &mut Restoring| r.parts == 0 && r.items.is_empty() || r.parts > 0 && late(r);
        for restoring in self.restoring.extract_if(.., done) {
            scheduler.restored(restoring.id);
        }
        while self.restoring.len() < MOST_RESTORING {
            let index = self.cache.queue().index();
            let Some((id, items)) = scheduler.look_up(&|file| index.has(file)) else { break };
            drop(index);
            self.begin(id, items);
        }
        for at in 0..self.restoring.len() {
            self.request(at, deliver);
        }
        Ok(())
    }

    fn begin(&mut self, id: RequestId, items: Vec<Item>) {
        let mut index = self.cache.queue().index();
        // the beginning of a prefix is removed last
        for item in items.iter().rev() {
            index.touch(&item.id);
        }
        drop(index);
        self.serials += 1;
        let (serial, items) = (self.serials, items.into());
        self.restoring.push(Restoring { id, serial, items, parts: 0, since: Instant::now() });
    }

    /// Requests the next parts of a sequence.
    fn request(&mut self, at: usize, deliver: &Deliver) {
        let restoring = &mut self.restoring[at];
        while restoring.parts < PARTS_AHEAD && !restoring.items.is_empty() {
            let (mut items, mut total) = (vec![], 0);
            while let Some(item) = restoring.items.front() {
                let bytes = self.format.bytes_of(item.id.part);
                if !items.is_empty() && total + bytes > PART {
                    break;
                }
                total += bytes;
                items.extend(restoring.items.pop_front().map(|item| (item, bytes)));
            }
            restoring.parts += 1;
            let (id, serial, deliver) = (restoring.id, restoring.serial, Arc::clone(deliver));
            let reply = Box::new(move |files| deliver(Part { id, serial, files }));
            self.cache.queue().read(ReadJob { model: self.model, items, reply });
        }
    }
}
