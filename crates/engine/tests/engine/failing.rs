//! What ends an engine, what holds it up, and how both are seen from outside.

use std::thread;
use std::time::{Duration, Instant};

use tern_engine::{Answer, Batch, Capacity, EngineError, Event, Request, Runner, ScriptedRunner};

use crate::handle::{Failure, Unlucky, block_on, engine, gate, runners, scripted, text};

fn lost() -> EngineError {
    EngineError::DeviceLost("a step on a GPU: unspecified launch failure".into())
}

const LOST: Failure = || Err(lost());

/// A runner that loses its device when it is given a batch whose first token is 13.
struct LostAtSubmit(ScriptedRunner);

impl Runner for LostAtSubmit {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        if batch.entries[0].tokens[0] == 13 { Err(lost()) } else { self.0.submit(batch) }
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        self.0.collect()
    }

    fn runs_ahead(&self) -> bool {
        self.0.runs_ahead()
    }

    fn capacity(&self) -> Capacity {
        self.0.capacity()
    }
}

/// Three sequences run, the third of which costs the device, and one waits.
fn lose(runner: impl Runner + 'static) {
    let (runner, entries, permit) = gate(runner);
    let engine = engine(runner);
    let first = engine.generate(Request::new(vec![1], 40)).unwrap();
    entries.recv().unwrap();
    let second = engine.generate(Request::new(vec![2], 40)).unwrap();
    let third = engine.generate(Request { priority: -1, ..Request::new(vec![13], 40) }).unwrap();
    let waiting = engine.generate(Request::new(vec![3], 40)).unwrap();
    drop(permit);
    assert_eq!(lost().to_string(), "the device was lost: a step on a GPU: unspecified launch failure");
    for stream in [first, second, third, waiting] {
        assert_eq!(text(stream).1, Some(Event::Failed(lost())));
    }
    assert_eq!(block_on(engine.closed()), lost());
    let other = engine.clone();
    assert_eq!((other.ended(), other.generate(Request::new(vec![1], 1)).err()), (Some(lost()), Some(lost())));
    assert_eq!((engine.stats().running, engine.stats().waiting, engine.stats().pages_free), (0, 0, 40));
    assert_eq!(engine.in_flight(), None);
}

#[test]
fn a_lost_device_ends_every_request_and_the_engine() {
    runners().into_iter().for_each(|runner| lose(Unlucky::new(runner, LOST)));
    runners().into_iter().for_each(|runner| lose(LostAtSubmit(runner)));
}

#[test]
fn the_step_in_flight_has_an_age() {
    let (runner, entries, permit) = gate(scripted());
    let engine = engine(runner);
    assert_eq!(engine.in_flight(), None);
    let stream = engine.generate(Request::new(vec![1], 2)).unwrap();
    entries.recv().unwrap();
    let first = engine.in_flight().unwrap();
    assert_eq!(first.expected, None, "nothing is known before the first step");
    thread::sleep(Duration::from_millis(20));
    assert_eq!(engine.in_flight(), Some(first));
    assert!(first.age() >= Duration::from_millis(20), "{first:?}");
    permit.send(()).unwrap();
    entries.recv().unwrap();
    let second = engine.in_flight().unwrap();
    assert!(
        second.since > first.since && second.expected.unwrap() >= Duration::from_millis(20),
        "{second:?}"
    );
    permit.send(()).unwrap();
    text(stream);
    let patience = Instant::now() + Duration::from_secs(20);
    while engine.in_flight().is_some() {
        assert!(Instant::now() < patience);
        thread::yield_now();
    }
}

#[test]
fn a_stuck_step_does_not_block_the_drop_of_the_engine() {
    let (runner, entries, permit) = gate(scripted());
    let engine = engine(runner);
    let stream = engine.generate(Request::new(vec![1], 2)).unwrap();
    entries.recv().unwrap();
    let (done, dropped) = std::sync::mpsc::channel();
    thread::spawn(move || {
        drop((stream, engine));
        let _ = done.send(());
    });
    let waited = dropped.recv_timeout(Duration::from_secs(15)); // the gate opens by itself after 20 s
    assert!(waited.is_ok(), "dropping the engine waits for its step");
    drop(permit);
}
