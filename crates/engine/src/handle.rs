//! The public side of an engine: requests in, streams of tokens out.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::disk::Key;
use crate::disk::restore::{DiskCounts, LAST_WRITES, Part};
use crate::{Capacity, EngineError, Event, Limits, Request, RequestId, Stats};

/// How long dropping the last handle waits for the step in flight. A step that takes longer continues on a
/// detached thread: a process that has to end must not wait for a device that does not respond.
const LAST_STEP: Duration = Duration::from_secs(2);

/// The step that the engine is working on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// When the engine began it.
    pub since: Instant,
    /// The expected maximum duration, estimated from earlier steps; `None` for the first.
    pub expected: Option<Duration>,
}

impl InFlight {
    /// Its duration so far.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// A handle to an engine. Clones refer to the same engine.
#[derive(Clone)]
pub struct Handle {
    owner: Arc<Owner>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>, gone: Receiver<()>) -> Handle {
        Handle { owner: Arc::new(Owner { shared, gone: Mutex::new(gone) }) }
    }

    /// Starts a request; an error says why it can never run, or that the queue is full.
    pub fn generate(&self, request: Request) -> Result<TokenStream, EngineError> {
        self.admit(&request)?;
        let shared = &self.owner.shared;
        // here, not on the engine's thread: rows of images may be many
        let hashed = request.images.iter().filter(|_| shared.sizes.has_disk);
        let images = hashed.map(|image| (image.rows.id, Key::of_image(&image.rows))).collect();
        let (stream, events) = unbounded_channel(); // a request emits at most max_tokens + 2 events
        let mut state = shared.lock();
        if let Some(why) = &state.ended {
            return Err(why.clone());
        }
        let client = request.client;
        let own = state.open.get(&client).copied().unwrap_or(0);
        shared.sizes.limits.queue(state.stats.running, state.stats.waiting, own)?;
        state.open.insert(client, own + 1);
        let id = state.next_id;
        state.next_id += 1;
        state.stats.waiting += 1;
        state.inbox.push(Command::Add { id, request: Box::new(request), stream, images });
        drop(state);
        shared.wake.notify_one();
        Ok(TokenStream { id, client, events, ended: false, owner: Arc::clone(&self.owner) })
    }

    /// Refuses a request that can never run here; [`Handle::generate`] does so too.
    pub fn admit(&self, request: &Request) -> Result<(), EngineError> {
        let Sizes { limits, capacity, reads_whole, .. } = self.owner.shared.sizes;
        limits.admit(request, &capacity, reads_whole)?;
        self.owner.shared.check_kind(request)?;
        self.owner.shared.check_images(request)?;
        self.owner.shared.check_tokens(request)
    }

    /// Counts of the engine.
    pub fn stats(&self) -> Stats {
        let shared = &self.owner.shared;
        let stats = shared.lock().stats;
        shared.disk.as_ref().map_or(stats, |disk| disk.count(stats))
    }

    /// Why the engine accepts no more work; `None` while it does.
    pub fn ended(&self) -> Option<EngineError> {
        self.owner.shared.lock().ended.clone()
    }

    /// Waits until the engine accepts no more work, and returns why.
    pub async fn closed(&self) -> EngineError {
        let shared = &self.owner.shared;
        loop {
            let mut closed = std::pin::pin!(shared.closed.notified());
            closed.as_mut().enable(); // before `ended` is read, so that no notification is missed in between
            if let Some(why) = self.ended() {
                return why;
            }
            closed.await;
        }
    }

    /// The step that the engine is working on; `None` while it is idle.
    pub fn in_flight(&self) -> Option<InFlight> {
        self.owner.shared.lock().in_flight
    }

    /// Whether the model generates text; otherwise it computes vectors or scores of texts.
    pub fn generates(&self) -> bool {
        self.owner.shared.sizes.generates
    }

    /// Whether the model reads texts whole and pools them itself: all tokens of a text are in one step.
    pub fn reads_whole(&self) -> bool {
        self.owner.shared.sizes.reads_whole
    }

    /// How many requests run and wait, and how long they may be.
    pub fn limits(&self) -> Limits {
        self.owner.shared.sizes.limits
    }

    /// KV pages and the largest step, as the runner has them.
    pub fn capacity(&self) -> Capacity {
        self.owner.shared.sizes.capacity
    }

    /// Stops after the step that runs now: open streams end with `Cancelled`, later requests are refused.
    ///
    /// Returns when the thread has ended and the runner is dropped.
    pub fn shutdown(&self) {
        self.owner.stop();
        // disconnected: nothing is ever sent
        let _ = self.owner.gone().recv();
    }
}

/// The events of one request. Dropping it cancels the request before the next step.
///
/// Blocking code iterates over it; async code calls [`TokenStream::next`]. It ends after [`Event::is_last`].
pub struct TokenStream {
    id: RequestId,
    client: u64,
    events: UnboundedReceiver<Event>,
    ended: bool,
    owner: Arc<Owner>,
}

impl TokenStream {
    /// The request's number in this engine.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next event, for a hand-written future or stream.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.events.poll_recv(cx).map(|event| self.take(event))
    }

    /// Waits for the next event; `None` after the last one.
    ///
    /// # Panics
    ///
    /// On a thread that drives a tokio runtime, which must not block: call [`TokenStream::next`] instead.
    pub fn next_blocking(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        self.take(event)
    }

    /// A channel that closes before the last event means that the engine thread has ended.
    fn take(&mut self, event: Option<Event>) -> Option<Event> {
        let event = event.unwrap_or(Event::Failed(EngineError::Stopped));
        self.ended = event.is_last();
        Some(event)
    }
}

/// As [`TokenStream::next_blocking`].
impl Iterator for TokenStream {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.next_blocking()
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        let mut state = self.owner.shared.lock();
        state.close(self.client);
        if !self.ended {
            if state.ended.is_none() {
                state.inbox.push(Command::Cancel(self.id));
            }
            drop(state);
            self.owner.shared.wake.notify_one();
        }
    }
}

/// Owned by handles and streams; the thread stops when the last of them is dropped.
struct Owner {
    shared: Arc<Shared>,
    /// Disconnected when the thread has ended and the runner is dropped.
    gone: Mutex<Receiver<()>>,
}

impl Owner {
    fn stop(&self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_one();
    }

    fn gone(&self) -> MutexGuard<'_, Receiver<()>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
        let writes = if self.shared.sizes.has_disk { LAST_WRITES } else { Duration::ZERO };
        let _ = self.gone().recv_timeout(LAST_STEP + writes);
    }
}

/// A command for the engine thread.
pub(crate) enum Command {
    Add {
        id: RequestId,
        request: Box<Request>,
        stream: UnboundedSender<Event>,
        /// The numbers of its images and the hashes of their rows, if there is a cache on disk.
        images: Vec<(u32, Key)>,
    },
    Cancel(RequestId),
    /// From the disk.
    Read(Part),
}

/// The numbers of an engine, which never change.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) limits: Limits,
    pub(crate) capacity: Capacity,
    /// Token ids are below.
    pub(crate) vocab: usize,
    /// Whether tokens can be generated.
    pub(crate) generates: bool,
    /// Whether all tokens of a text are in one step.
    pub(crate) reads_whole: bool,
    /// Adapters that sequences may use.
    pub(crate) adapters: usize,
    /// Columns of the rows of images.
    pub(crate) image_width: usize,
    /// Rows of an image at most.
    pub(crate) image_rows: usize,
    /// Whether there is a cache on disk.
    pub(crate) has_disk: bool,
}

/// Shared by handles, streams and the engine thread.
pub(crate) struct Shared {
    sizes: Sizes,
    state: Mutex<State>,
    wake: Condvar,
    /// Notified when `State::ended` is set.
    pub(crate) closed: Notify,
    /// The counts of the cache on disk, which change while the engine sleeps.
    disk: Option<DiskCounts>,
}

/// What the handles and the engine thread share, with one lock that is taken briefly between steps.
pub(crate) struct State {
    pub(crate) inbox: Vec<Command>,
    stats: Stats,
    pub(crate) stopping: bool,
    /// Why the engine accepts no more work.
    pub(crate) ended: Option<EngineError>,
    /// None while the engine thread sleeps or has ended.
    in_flight: Option<InFlight>,
    next_id: RequestId,
    /// Streams per client.
    open: HashMap<u64, usize>,
}

impl State {
    /// A stream of a client is dropped.
    fn close(&mut self, client: u64) {
        if let Some(open) = self.open.get_mut(&client) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&client);
            }
        }
    }

    /// Publishes the scheduler's counts; requests in the inbox count as waiting.
    pub(crate) fn publish(&mut self, stats: Stats) {
        let added = self.inbox.iter().filter(|command| matches!(command, Command::Add { .. })).count();
        self.stats = Stats { waiting: stats.waiting + added, ..stats };
    }

    /// The engine begins its next step.
    pub(crate) fn work(&mut self, since: Instant) {
        self.in_flight = Some(InFlight { since, expected: None });
    }

    /// The next step is planned.
    pub(crate) fn begin(&mut self, stats: Stats, expected: Option<Duration>) {
        self.publish(stats);
        if let Some(step) = &mut self.in_flight {
            step.expected = expected;
        }
    }

    /// The engine has nothing to do.
    pub(crate) fn idle(&mut self) {
        self.in_flight = None;
    }
}

impl Shared {
    pub(crate) fn new(sizes: Sizes, stats: Stats, disk: Option<DiskCounts>) -> Shared {
        let state = State {
            inbox: vec![],
            stats,
            stopping: false,
            ended: None,
            in_flight: None,
            next_id: 1,
            open: HashMap::new(),
        };
        Shared { sizes, state: Mutex::new(state), wake: Condvar::new(), closed: Notify::new(), disk }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command to the engine thread, unless it has ended.
    pub(crate) fn send(&self, command: Command) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.inbox.push(command);
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Sleeps until a command arrives, or until it has slept this long.
    pub(crate) fn sleep<'a>(
        &self,
        state: MutexGuard<'a, State>,
        most: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        let nothing = |state: &mut State| state.inbox.is_empty() && !state.stopping;
        match most {
            None => self.wake.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner),
            Some(most) => {
                let waited = self.wake.wait_timeout_while(state, most, nothing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Refuses what the model does not compute.
    fn check_kind(&self, request: &Request) -> Result<(), EngineError> {
        if !self.sizes.generates && request.pooling.is_none() {
            return Err(EngineError::NoText);
        }
        let used = request.adapters.scales().len();
        if used > self.sizes.adapters {
            return Err(EngineError::Adapter { adapter: used - 1, adapters: self.sizes.adapters });
        }
        Ok(())
    }

    /// Rows of another size would fail the whole step, with every sequence in it.
    fn check_images(&self, request: &Request) -> Result<(), EngineError> {
        let (width, mut end) = (self.sizes.image_width, 0);
        for image in request.images.iter() {
            let rows = &image.rows;
            if width == 0 || rows.width != width || rows.len.checked_mul(width) != Some(rows.values.len()) {
                return Err(EngineError::Image { width: rows.width, want: width });
            }
            let most = self.sizes.image_rows;
            if rows.len > most {
                return Err(EngineError::ImageTooLong { len: rows.len, most });
            }
            if image.start < end || image.end() > request.prompt.len() {
                let (start, prompt) = (image.start, request.prompt.len());
                return Err(EngineError::ImagePlace { start, len: rows.len, prompt });
            }
            end = image.end();
        }
        Ok(())
    }

    /// A token outside the vocabulary would fail the whole step, with every sequence in it.
    fn check_tokens(&self, request: &Request) -> Result<(), EngineError> {
        let prompt = request.prompt.iter().map(|&id| ("prompt", id));
        let bias = request.sampling.bias.iter().map(|&(id, _)| ("bias", id));
        let vocab = self.sizes.vocab;
        match prompt.chain(bias).find(|(_, id)| *id as usize >= vocab) {
            Some((name, id)) => Err(EngineError::Token { name, id, vocab }),
            None => Ok(()),
        }
    }
}
