//! Tests of the stress run: sound engines pass, and each kind of fault is found.

use std::sync::mpsc;

use super::*;
use tern::engine::{Answer, Batch, Capacity, Engine, EngineError, Entry, Limits, Runner, ScriptedRunner};

const PAGE_LEN: usize = 4;
const CAPACITY: Capacity = Capacity {
    pages: 24,
    page_len: PAGE_LEN,
    max_tokens: 16,
    max_outputs: PLAN.streams,
    window: None,
    state: None,
};
const SIZES: Sizes = Sizes { vocab: 50, context: 64, page_len: PAGE_LEN, step_tokens: 16, adapters: 0 };
const PLAN: Plan = Plan {
    streams: 6,
    time: Duration::from_millis(600),
    seed: 7,
    tie: 0.0,
    hang: Duration::from_secs(20),
    drafts: 3,
};

/// Repeats a run until `seen` holds: on a busy machine a run may end before anything has happened.
fn run<R: Runner + 'static>(runner: impl Fn() -> R, seen: impl Fn(&Outcome) -> bool) -> Outcome {
    let mut outcome = one(runner(), &PLAN).1;
    for _ in 0..20 {
        if seen(&outcome) {
            break;
        }
        outcome = one(runner(), &PLAN).1;
    }
    outcome
}

fn one(runner: impl Runner + 'static, plan: &Plan) -> (Handle, Outcome) {
    let limits = Limits {
        max_seqs: PLAN.streams,
        max_context: SIZES.context,
        max_waiting: 2 * PLAN.streams,
        step_millis: 0,
    };
    let sizes = Sizes { adapters: runner.adapters().min(2), ..SIZES };
    let monitor = StepMonitor::new();
    let handle = Engine::start(Box::new(MonitoredRunner::new(runner, monitor.clone())), limits).unwrap();
    let outcome = stress(&handle, &monitor, sizes, plan).unwrap();
    (handle, outcome)
}

fn scripted() -> ScriptedRunner {
    ScriptedRunner::new(SIZES.vocab, CAPACITY).running_ahead()
}

/// Changes a batch before the runner gets it.
struct Broken<F>(ScriptedRunner, F);

impl<F: FnMut(&mut Batch) -> Result<(), EngineError> + Send> Runner for Broken<F> {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let mut batch = batch.clone();
        (self.1)(&mut batch)?;
        self.0.submit(&batch)
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

    fn vocab(&self) -> usize {
        self.0.vocab()
    }
}

#[test]
fn a_sound_engine_passes_and_every_case_occurs() {
    let everything = |o: &Outcome| {
        let Outcome { cancelled, stats, steps, .. } = o;
        let counts = [*cancelled, stats.preemptions, stats.cached_tokens, steps.mixed];
        // every small step size
        counts.iter().chain(&steps.by_tokens[..6]).all(|n| *n > 0) && steps.sequences == PLAN.streams
    };
    let o = run(scripted, everything);
    assert!(o.is_good(&PLAN) && everything(&o), "{o:?}");
    assert!(o.alone >= MIN_ALONE && o.requests > 0 && o.tokens > 0, "{o:?}");
}

#[test]
fn wrong_pages_are_found_and_explained() {
    let mixing = || {
        let mut left = 10;
        Broken(scripted(), move |batch: &mut Batch| {
            let Some(page) = batch.entries.first().map(|e| e.slice.pages[0]) else { return Ok(()) };
            let reads = |e: &&mut Entry| {
                e.slice.position >= PAGE_LEN && e.slice.pages[0] != page && !e.samples().is_empty()
            };
            if left > 0
                && let Some(entry) = batch.entries.iter_mut().find(reads)
            {
                left -= 1;
                entry.slice.pages.make_mut()[0] = page;
            }
            Ok(())
        })
    };
    let o = run(mixing, |o| o.differing() > 0);
    assert!(o.failure.is_none() && !o.is_good(&PLAN), "{o:?}");
    assert!((1..=20).contains(&o.differing()), "{o:?}"); // a wrong token is carried into the next step
    assert!(o.differences.iter().all(|d| d.gap.is_some()), "{o:?}");
}

#[test]
fn an_error_of_the_runner_ends_the_run_with_its_message() {
    let message = "a step on a scripted device: it failed";
    let failing = || {
        Broken(scripted(), |batch: &mut Batch| {
            if batch.entries.len() < 3 { Ok(()) } else { Err(EngineError::Runner(message.into())) }
        })
    };
    let o = run(failing, |o| o.failure.is_some());
    assert_eq!(o.failure, Some(Failure::Engine(message.into())));
    assert!(!o.is_good(&PLAN) && o.requests > 0);
}

#[test]
fn a_hang_ends_the_run() {
    let (release, held) = mpsc::channel::<()>();
    let mut steps = 0;
    let hanging = Broken(scripted(), move |_: &mut Batch| {
        steps += 1;
        if steps == 10 {
            let _ = held.recv();
        }
        Ok(())
    });
    let (handle, o) = one(hanging, &Plan { hang: Duration::from_millis(300), ..PLAN });
    assert!(matches!(o.failure, Some(Failure::Hang(_))) && !o.is_good(&PLAN), "{o:?}");
    drop(release);
    handle.shutdown();
}
