//! The thread behind a handle: cancelling, failing, stopping, and nothing shared between two engines.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tern_engine::{
    Answer, Batch, Capacity, Engine, EngineError, Event, Fault, Finish, Handle, Limits, Request, RequestId,
    Runner, Sampling, ScriptedRunner, TokenStream,
};

use crate::harness::{Scenario, alone};

pub(crate) const LIMITS: Limits = Limits { max_seqs: 3, max_context: 64, max_waiting: 1, step_millis: 0 };
pub(crate) const CAPACITY: Capacity =
    Capacity { pages: 40, page_len: 4, max_tokens: 8, max_outputs: 3, window: None, state: None };

pub(crate) fn scripted() -> ScriptedRunner {
    ScriptedRunner::new(50, CAPACITY)
}

pub(crate) fn engine(runner: impl Runner + 'static) -> Handle {
    Engine::start(Box::new(runner), LIMITS).unwrap()
}

pub(crate) fn text(stream: TokenStream) -> (Vec<u32>, Option<Event>) {
    let mut events: Vec<Event> = stream.collect();
    let last = events.pop();
    let id = |event| match event {
        Event::Started { .. } => None,
        Event::Token(token) => Some(token.id),
        other => panic!("{other:?} before the end"),
    };
    (events.into_iter().filter_map(id).collect(), last)
}

/// A runner that reports which requests are in its step, and waits for a permit before it answers.
pub(crate) struct Gate<R> {
    inner: R,
    entered: Sender<Vec<RequestId>>,
    permits: Receiver<()>,
}

impl<R: Runner> Runner for Gate<R> {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let _ = self.entered.send(batch.entries.iter().map(|e| e.id).collect());
        self.inner.submit(batch)
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        let _ = self.permits.recv_timeout(Duration::from_secs(20)); // ends after a failed test
        self.inner.collect()
    }

    fn runs_ahead(&self) -> bool {
        self.inner.runs_ahead()
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }
}

pub(crate) fn gate<R>(inner: R) -> (Gate<R>, Receiver<Vec<RequestId>>, Sender<()>) {
    let ((entered, entries), (permit, permits)) = (channel(), channel());
    (Gate { inner, entered, permits }, entries, permit)
}

/// One that does not run ahead and one that does.
pub(crate) fn runners() -> [ScriptedRunner; 2] {
    with_capacity(CAPACITY)
}

fn with_capacity(capacity: Capacity) -> [ScriptedRunner; 2] {
    [ScriptedRunner::new(50, capacity), ScriptedRunner::new(50, capacity).running_ahead()]
}

/// A runner that returns the result of a function for batches whose first token is 13.
pub(crate) struct Unlucky {
    inner: ScriptedRunner,
    failure: Failure,
    /// For each batch in flight.
    unlucky: VecDeque<bool>,
}

pub(crate) type Failure = fn() -> Result<Vec<Answer>, EngineError>;

impl Unlucky {
    pub(crate) fn new(inner: ScriptedRunner, failure: Failure) -> Unlucky {
        Unlucky { inner, failure, unlucky: VecDeque::new() }
    }
}

impl Runner for Unlucky {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.unlucky.push_back(batch.entries[0].tokens[0] == 13);
        self.inner.submit(batch)
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        let answers = self.inner.collect();
        if self.unlucky.pop_front() == Some(true) { (self.failure)() } else { answers }
    }

    fn runs_ahead(&self) -> bool {
        self.inner.runs_ahead()
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }
}

/// A runner that records its calls, `s` for submit and `c` for collect, and refuses a batch
/// whose first token is 13.
struct Logged(ScriptedRunner, Arc<Mutex<String>>);

impl Runner for Logged {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.1.lock().unwrap().push('s');
        if batch.entries[0].tokens[0] == 13 {
            return Err(EngineError::Runner("unlucky".into()));
        }
        self.0.submit(batch)
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        self.1.lock().unwrap().push('c');
        self.0.collect()
    }

    fn runs_ahead(&self) -> bool {
        self.0.runs_ahead()
    }

    fn capacity(&self) -> Capacity {
        self.0.capacity()
    }
}

fn plus(by: u32) -> ScriptedRunner {
    ScriptedRunner::answering(50, CAPACITY, move |history, _| history.last().map(|t| (t + by) % 50))
}

#[test]
fn dropping_a_stream_cancels_its_request_before_the_next_step() {
    let (runner, entries, permit) = gate(scripted());
    let engine = engine(runner);
    let first = engine.generate(Request::new(vec![1], 40)).unwrap();
    assert_eq!(entries.recv().unwrap(), [first.id()]);
    let second = engine.generate(Request::new(vec![2], 40)).unwrap();
    permit.send(()).unwrap();
    assert_eq!(entries.recv().unwrap(), [first.id(), second.id()]);
    drop(first);
    permit.send(()).unwrap();
    assert_eq!(entries.recv().unwrap(), [second.id()]);
    assert_eq!((engine.stats().running, engine.stats().pages_free), (1, 39));
    drop(permit);
}

#[test]
fn dropping_a_stream_also_drops_what_is_in_flight_for_it() {
    let (runner, entries, permit) = gate(scripted().running_ahead());
    let engine = engine(runner);
    let first = engine.generate(Request::new(vec![1], 40)).unwrap();
    // two steps before the first is collected
    assert_eq!([entries.recv().unwrap(), entries.recv().unwrap()], [[first.id()], [first.id()]]);
    let second = engine.generate(Request::new(vec![2], 40)).unwrap();
    permit.send(()).unwrap();
    assert_eq!(entries.recv().unwrap(), [first.id(), second.id()]);
    drop(first);
    permit.send(()).unwrap();
    assert_eq!(entries.recv().unwrap(), [second.id()]);
    assert_eq!((engine.stats().running, engine.stats().pages_free), (1, 39));
    drop(permit);
    assert_eq!(
        text(second).0,
        alone(&mut scripted(), &Scenario::new(Request::new(vec![2], 40))).unwrap().text
    );
}

/// What a text that counts upward asks of its runner, and the text.
fn log(ahead: bool, request: Request) -> (String, Vec<u32>) {
    let log = Arc::new(Mutex::new(String::new()));
    let runner = if ahead { plus(1).running_ahead() } else { plus(1) };
    let engine = engine(Logged(runner, Arc::clone(&log)));
    let (text, _) = text(engine.generate(request).unwrap());
    let open = || log.lock().unwrap().chars().map(|c| if c == 's' { 1 } else { -1 }).sum::<i32>();
    // the step in flight is collected even if no stream waits for it
    let patience = Instant::now() + Duration::from_secs(20);
    while open() > 0 {
        assert!(Instant::now() < patience, "{} steps are in flight", open());
        thread::yield_now();
    }
    engine.shutdown();
    assert_eq!((engine.stats().running, engine.stats().pages_free), (0, 40));
    let log = log.lock().unwrap().clone();
    (log, text)
}

#[test]
fn a_step_is_submitted_before_the_one_before_it_is_collected_if_it_can_do_without() {
    let four = || Request::new(vec![20], 4);
    let text = vec![21, 22, 23, 24];
    assert_eq!(log(false, four()), ("scscscsc".into(), text.clone()));
    assert_eq!(log(true, four()), ("sscscscc".into(), text.clone()));
    let ends = Request { end_tokens: [23].into(), ..four() };
    assert_eq!(log(true, ends), ("sscscscc".into(), vec![21, 22]), "the step after the end is for nothing");
    let penalties = Sampling { presence: 1.0, ..Sampling::default() };
    let penalised = Request { sampling: penalties, ..four() };
    assert_eq!(
        log(true, penalised),
        ("scscscsc".into(), text.clone()),
        "a choice that depends on the last token must wait"
    );
    let prompt = Request::new((0..17).collect(), 2);
    assert_eq!(log(true, prompt), ("sscscscc".into(), vec![17, 18]), "eight prompt tokens per step");
}

#[test]
fn a_text_without_a_finite_logit_fails_alone() {
    for ahead in [false, true] {
        let count = |history: &[u32], _: &_| history.last().filter(|t| **t != 23).map(|t| t + 1);
        let runner = ScriptedRunner::answering(50, CAPACITY, count);
        let engine = engine(if ahead { runner.running_ahead() } else { runner });
        let streams = [20, 30].map(|first| engine.generate(Request::new(vec![first], 9)).unwrap());
        let [broken, whole] = streams.map(text);
        assert_eq!(broken, (vec![21, 22, 23], Some(Event::Failed(EngineError::NotFinite { position: 3 }))));
        assert_eq!(whole, ((31..40).collect(), Some(Event::Done(Finish::Length))));
    }
}

#[test]
fn what_cannot_run_is_refused_before_it_starts() {
    let (runner, entries, permit) = gate(scripted());
    let engine = engine(runner);
    let refused = |request| engine.generate(request).err().map(|e| (e.to_string(), e.fault())).unwrap();
    assert_eq!(refused(Request::new(vec![], 1)), ("the prompt is empty".into(), Fault::Request));
    let mut streams = vec![engine.generate(Request::new(vec![1], 9)).unwrap()];
    entries.recv().unwrap();
    streams.extend((0..3).map(|_| engine.generate(Request::new(vec![1], 9)).unwrap()));
    let message = "the queue is full: 1 running and 3 waiting, at most 3 and 1";
    assert_eq!(refused(Request::new(vec![1], 9)), (message.into(), Fault::Busy));
    drop(permit);
    drop(streams);
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let engine = engine(scripted());
    let mut request = Request::new(vec![1, 50], 9);
    let message = |request: &Request| engine.generate(request.clone()).err().unwrap().to_string();
    assert_eq!(message(&request), "prompt: token id 50 is outside the vocabulary of 50");
    request.prompt.pop();
    request.sampling.bias = vec![(99, 1.0)];
    assert_eq!(message(&request), "bias: token id 99 is outside the vocabulary of 50");
}

#[test]
fn a_failed_step_fails_its_requests_and_the_engine_goes_on() {
    let failures: [(Failure, &str); 2] = [
        (|| Err(EngineError::Runner("attend: out of memory".into())), "attend: out of memory"),
        (|| Ok(vec![]), "the runner returned 0 answers for 1 entries"),
    ];
    for (failure, message) in failures {
        for runner in runners() {
            let engine = engine(Unlucky::new(runner, failure));
            let (tokens, last) = text(engine.generate(Request::new(vec![13], 5)).unwrap());
            assert_eq!((tokens, last), (vec![], Some(Event::Failed(EngineError::Runner(message.into())))));
            let (tokens, last) = text(engine.generate(Request::new(vec![1, 2], 1)).unwrap());
            assert_eq!((tokens.len(), last), (1, Some(Event::Done(Finish::Length))));
            assert_eq!(engine.stats().pages_free, 40);
        }
    }
}

#[test]
fn a_failed_step_fails_those_of_the_step_after_it() {
    let failure: Failure = || Err(EngineError::Runner("attend: out of memory".into()));
    let (runner, entries, permit) = gate(Unlucky::new(scripted().running_ahead(), failure));
    let engine = engine(runner);
    let first = engine.generate(Request::new(vec![1], 20)).unwrap();
    assert_eq!([entries.recv().unwrap(), entries.recv().unwrap()], [[first.id()], [first.id()]]);
    let second = engine.generate(Request { priority: -1, ..Request::new(vec![13], 20) }).unwrap();
    permit.send(()).unwrap();
    assert_eq!(entries.recv().unwrap(), [second.id(), first.id()], "this one fails");
    let third = engine.generate(Request::new(vec![3], 20)).unwrap();
    permit.send(()).unwrap();
    assert_eq!(entries.recv().unwrap(), [second.id(), first.id(), third.id()], "and this one with it");
    drop(permit);
    let failed = Some(Event::Failed(EngineError::Runner("attend: out of memory".into())));
    let ends = [first, second, third].map(text);
    assert_eq!(ends.map(|(text, last)| (text.len(), last)), [2, 0, 0].map(|tokens| (tokens, failed.clone())));
    assert_eq!(text(engine.generate(Request::new(vec![1], 3)).unwrap()).0.len(), 3);
    assert_eq!(engine.stats().pages_free, 40);
}

#[test]
fn a_step_that_is_refused_takes_nothing_from_the_one_before_it() {
    let (runner, entries, permit) = gate(Logged(scripted().running_ahead(), Arc::default()));
    let engine = engine(runner);
    let first = engine.generate(Request::new(vec![1], 20)).unwrap();
    assert_eq!([entries.recv().unwrap(), entries.recv().unwrap()], [[first.id()], [first.id()]]);
    let second = engine.generate(Request { priority: -1, ..Request::new(vec![13], 20) }).unwrap();
    drop(permit);
    let failed = Some(Event::Failed(EngineError::Runner("unlucky".into())));
    let ends = [first, second].map(text);
    assert_eq!(ends.map(|(text, last)| (text.len(), last)), [2, 0].map(|tokens| (tokens, failed.clone())));
    assert_eq!(text(engine.generate(Request::new(vec![1], 3)).unwrap()).0.len(), 3);
}

#[test]
fn after_a_panic_the_engine_refuses_work() {
    for runner in runners() {
        let engine = engine(Unlucky::new(runner, || panic!("index out of bounds")));
        let why = EngineError::Panicked("index out of bounds".into());
        let (tokens, last) = text(engine.generate(Request::new(vec![13], 5)).unwrap());
        assert_eq!((tokens, last), (vec![], Some(Event::Failed(why.clone()))));
        assert_eq!(why.to_string(), "the engine stopped after a panic: index out of bounds");
        assert_eq!(engine.generate(Request::new(vec![1], 5)).err(), Some(why.clone()));
        assert_eq!(engine.ended(), Some(why));
        assert_eq!((engine.stats().running, engine.stats().pages_free), (0, 40));
    }
}

#[test]
fn shutdown_ends_open_streams_and_drops_the_runner() {
    // more than anyone will wait for
    let limits = Limits { max_context: 1 << 20, ..LIMITS };
    for runner in with_capacity(Capacity { pages: 1 << 19, ..CAPACITY }) {
        let (runner, entries, permit) = gate(runner);
        drop(permit);
        let engine = Engine::start(Box::new(runner), limits).unwrap();
        let endless = Request::new(vec![1], 1_000_000);
        let streams = [(); 2].map(|()| engine.generate(endless.clone()).unwrap());
        entries.recv().unwrap();
        let other = engine.clone();
        let stopper = thread::spawn(move || other.shutdown());
        engine.shutdown();
        stopper.join().unwrap();
        for stream in streams {
            assert_eq!(text(stream).1, Some(Event::Done(Finish::Cancelled)));
        }
        assert_eq!(engine.generate(endless).err(), Some(EngineError::Stopped));
        assert_eq!((engine.stats().running, engine.stats().pages_free), (0, 1 << 19));
        while entries.try_recv().is_ok() {}
        assert!(entries.recv().is_err(), "the runner is gone and its sender with it");
    }
}

#[test]
fn an_engine_lives_as_long_as_its_last_handle_or_stream() {
    for runner in runners() {
        let (runner, entries, permit) = gate(runner);
        drop(permit);
        let stream = engine(runner).generate(Request::new(vec![1, 2], 30)).unwrap();
        assert_eq!(text(stream).0.len(), 30);
        while entries.try_recv().is_ok() {}
        assert!(entries.recv().is_err(), "the runner is gone");
    }
}

#[test]
fn two_engines_live_side_by_side() {
    let (one, two) = (engine(plus(1)), engine(plus(2)));
    let streams = [&one, &two, &one].map(|engine| engine.generate(Request::new(vec![10], 3)).unwrap());
    assert_eq!(streams.map(|s| text(s).0), [[11, 12, 13], [12, 14, 16], [11, 12, 13]]);
    one.shutdown();
    assert_eq!(text(two.generate(Request::new(vec![20], 2)).unwrap()).0, [22, 24]);
    assert_eq!((one.stats().tokens_generated, two.stats().tokens_generated), (6, 5));
}

#[test]
fn the_end_token_ends_the_text_and_is_no_part_of_it() {
    let count = ScriptedRunner::answering(50, CAPACITY, |history, _| history.last().map(|t| t + 1));
    let request = Request { end_tokens: [13].into(), ..Request::new(vec![10], 30) };
    assert_eq!(
        text(engine(count).generate(request).unwrap()),
        (vec![11, 12], Some(Event::Done(Finish::Stop(13))))
    );
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(out) => return out,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_stream_can_be_awaited() {
    let engine = engine(scripted());
    let mut stream = engine.generate(Request::new(vec![1, 2], 12)).unwrap();
    let events = block_on(async {
        let mut events = vec![];
        while let Some(event) = stream.next().await {
            events.push(event);
        }
        assert_eq!(stream.next().await, None);
        events
    });
    assert_eq!((events.len(), events.last()), (14, Some(&Event::Done(Finish::Length))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn concurrent_callers_get_the_text_each_would_get_alone(
        requests in prop::collection::vec((prop::collection::vec(0..50u32, 1..20), 1..30usize, any::<bool>()), 1..8),
        (pages, ahead) in (13..30usize, any::<bool>()),
    ) {
        let limits = Limits { max_waiting: 8, ..LIMITS };
        let [now, running_ahead] = with_capacity(Capacity { pages, ..CAPACITY });
        let engine = Engine::start(Box::new(if ahead { running_ahead } else { now }), limits).unwrap();
        thread::scope(|scope| {
            let callers = requests.iter().map(|(prompt, max_tokens, patient)| {
                let (engine, request) = (engine.clone(), Request::new(prompt.clone(), *max_tokens));
                scope.spawn(move || {
                    let stream = engine.generate(request.clone()).unwrap();
                    let want = alone(&mut scripted(), &Scenario::new(request.clone())).unwrap().text;
                    if *patient {
                        assert_eq!(text(stream).0, want);
                    } else if let Some(Event::Token(token)) = stream.take(2).last() {
                        assert_eq!(token.id, want[0]);
                    }
                })
            });
            callers.collect::<Vec<_>>().into_iter().for_each(|caller| caller.join().unwrap());
        });
        // a last request: when it ends, every cancel before it has been heard
        text(engine.generate(Request::new(vec![1], 1)).unwrap());
        prop_assert_eq!(engine.stats().pages_free, pages);
    }
}
