//! The thread behind a handle: cancelling, failing, stopping, and nothing shared between two engines.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use proptest::prelude::*;
use tern_engine::{
    Answer, Batch, Engine, EngineError, Event, Fault, Finish, Handle, Limits, Request, RequestId, Runner,
    ScriptedRunner, TokenStream,
};

use crate::company::{Guest, alone};

const LIMITS: Limits = Limits {
    max_seqs: 3,
    max_batch_tokens: 8,
    max_context: 64,
    pages: 40,
    page_len: 4,
    max_waiting: 1,
    step_millis: 0,
};

fn scripted() -> ScriptedRunner {
    ScriptedRunner::new(50, LIMITS.page_len)
}

fn engine(runner: impl Runner + 'static) -> Handle {
    Engine::start(Box::new(runner), LIMITS).unwrap()
}

fn text(stream: TokenStream) -> (Vec<u32>, Option<Event>) {
    let mut events: Vec<Event> = stream.collect();
    let last = events.pop();
    let id = |event| match event {
        Event::Started { .. } => None,
        Event::Token(token) => Some(token.id),
        other => panic!("{other:?} before the end"),
    };
    (events.into_iter().filter_map(id).collect(), last)
}

/// A runner that says which requests are in its step and waits until it may go on.
struct Gate {
    inner: ScriptedRunner,
    entered: Sender<Vec<RequestId>>,
    permits: Receiver<()>,
}

impl Runner for Gate {
    fn step(&mut self, batch: &Batch) -> Result<Vec<Answer>, EngineError> {
        let _ = self.entered.send(batch.entries.iter().map(|e| e.id).collect());
        let _ = self.permits.recv_timeout(Duration::from_secs(20)); // a test that failed lets go
        self.inner.step(batch)
    }
}

fn gate() -> (Gate, Receiver<Vec<RequestId>>, Sender<()>) {
    let ((entered, entries), (permit, permits)) = (channel(), channel());
    (Gate { inner: scripted(), entered, permits }, entries, permit)
}

/// A runner that does what a function says when the first token of a batch is 13, and the usual otherwise.
struct Unlucky(ScriptedRunner, Failure);

type Failure = fn() -> Result<Vec<Answer>, EngineError>;

impl Runner for Unlucky {
    fn step(&mut self, batch: &Batch) -> Result<Vec<Answer>, EngineError> {
        if batch.entries[0].tokens[0] == 13 { (self.1)() } else { self.0.step(batch) }
    }
}

#[test]
fn dropping_a_stream_cancels_its_request_before_the_next_step() {
    let (runner, entries, permit) = gate();
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
fn what_cannot_run_is_refused_before_it_starts() {
    let (runner, entries, permit) = gate();
    let engine = engine(runner);
    let refused = |request| engine.generate(request).err().map(|e| (e.to_string(), e.fault())).unwrap();
    assert_eq!(refused(Request::new(vec![], 1)), ("the prompt is empty".into(), Fault::Request));
    let mut streams = vec![engine.generate(Request::new(vec![1], 9)).unwrap()];
    entries.recv().unwrap();
    streams.extend((0..3).map(|_| engine.generate(Request::new(vec![1], 9)).unwrap()));
    let words = "the queue is full: 1 running and 3 waiting, at most 3 and 1";
    assert_eq!(refused(Request::new(vec![1], 9)), (words.into(), Fault::Busy));
    drop(permit);
    drop(streams);
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let engine = engine(scripted());
    let mut request = Request::new(vec![1, 50], 9);
    let words = |request: &Request| engine.generate(request.clone()).err().unwrap().to_string();
    assert_eq!(words(&request), "prompt: token id 50 is outside the vocabulary of 50");
    request.prompt.pop();
    request.sampling.bias = vec![(99, 1.0)];
    assert_eq!(words(&request), "bias: token id 99 is outside the vocabulary of 50");
}

#[test]
fn a_failed_step_fails_its_requests_and_the_engine_goes_on() {
    let failures: [(Failure, &str); 2] = [
        (|| Err(EngineError::Runner("attend: out of memory".into())), "attend: out of memory"),
        (|| Ok(vec![]), "the runner answered 0 of 1 entries"),
    ];
    for (failure, words) in failures {
        let engine = engine(Unlucky(scripted(), failure));
        let (tokens, last) = text(engine.generate(Request::new(vec![13], 5)).unwrap());
        assert_eq!((tokens, last), (vec![], Some(Event::Failed(EngineError::Runner(words.into())))));
        let (tokens, last) = text(engine.generate(Request::new(vec![1, 2], 1)).unwrap());
        assert_eq!((tokens.len(), last), (1, Some(Event::Done(Finish::Length))));
        assert_eq!(engine.stats().pages_free, 40);
    }
}

#[test]
fn after_a_panic_the_engine_refuses_work() {
    let engine = engine(Unlucky(scripted(), || panic!("index out of bounds")));
    let why = EngineError::Panicked("index out of bounds".into());
    let (tokens, last) = text(engine.generate(Request::new(vec![13], 5)).unwrap());
    assert_eq!((tokens, last), (vec![], Some(Event::Failed(why.clone()))));
    assert_eq!(why.to_string(), "the engine stopped after a panic: index out of bounds");
    assert_eq!(engine.generate(Request::new(vec![1], 5)).err(), Some(why.clone()));
    assert_eq!(engine.ended(), Some(why));
    assert_eq!((engine.stats().running, engine.stats().pages_free), (0, 40));
}

#[test]
fn shutdown_ends_open_streams_and_drops_the_runner() {
    let (runner, entries, permit) = gate();
    drop(permit);
    // more than anyone will wait for
    let limits = Limits { max_context: 1 << 20, pages: 1 << 19, ..LIMITS };
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

#[test]
fn an_engine_lives_as_long_as_its_last_handle_or_stream() {
    let (runner, entries, permit) = gate();
    drop(permit);
    let stream = engine(runner).generate(Request::new(vec![1, 2], 30)).unwrap();
    assert_eq!(text(stream).0.len(), 30);
    while entries.try_recv().is_ok() {}
    assert!(entries.recv().is_err(), "the runner is gone");
}

#[test]
fn two_engines_live_side_by_side() {
    let plus =
        |by: u32| ScriptedRunner::answering(50, 4, move |history, _| history.last().map(|t| (t + by) % 50));
    let (one, two) = (engine(plus(1)), engine(plus(2)));
    let streams = [&one, &two, &one].map(|engine| engine.generate(Request::new(vec![10], 3)).unwrap());
    assert_eq!(streams.map(|s| text(s).0), [[11, 12, 13], [12, 14, 16], [11, 12, 13]]);
    one.shutdown();
    assert_eq!(text(two.generate(Request::new(vec![20], 2)).unwrap()).0, [22, 24]);
    assert_eq!((one.stats().tokens_generated, two.stats().tokens_generated), (6, 5));
}

#[test]
fn the_end_token_ends_the_text_and_is_no_part_of_it() {
    let count = ScriptedRunner::answering(50, 4, |history, _| history.last().map(|t| t + 1));
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

fn block_on<F: Future>(future: F) -> F::Output {
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
    fn many_callers_hear_what_each_would_hear_alone(
        requests in prop::collection::vec((prop::collection::vec(0..50u32, 1..20), 1..30usize, any::<bool>()), 1..8),
        pages in 13..30usize,
    ) {
        let limits = Limits { pages, max_waiting: 8, ..LIMITS };
        let engine = Engine::start(Box::new(scripted()), limits).unwrap();
        thread::scope(|scope| {
            let callers = requests.iter().map(|(prompt, max_tokens, patient)| {
                let (engine, request) = (engine.clone(), Request::new(prompt.clone(), *max_tokens));
                scope.spawn(move || {
                    let stream = engine.generate(request.clone()).unwrap();
                    let want = alone(&mut scripted(), &Guest::new(request.clone()), limits.page_len).unwrap().text;
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
