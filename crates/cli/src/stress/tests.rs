//! The stress finds what it is made to find.

use std::sync::mpsc;

use super::*;
use tern_engine::{Answer, Batch, Engine, EngineError, Limits, Runner, ScriptedRunner};

const PAGE_LEN: usize = 4;
const SIZES: Sizes = Sizes { vocab: 50, context: 64, page_len: PAGE_LEN, step_tokens: 16 };
const PLAN: Plan = Plan {
    streams: 6,
    time: Duration::from_millis(600),
    seed: 7,
    tie: 0.0,
    hang: Duration::from_millis(300),
};

fn run(runner: impl Runner + 'static) -> (Handle, Outcome) {
    let limits = Limits {
        max_seqs: PLAN.streams,
        max_batch_tokens: SIZES.step_tokens,
        max_context: SIZES.context,
        pages: 24,
        page_len: PAGE_LEN,
        max_waiting: 2 * PLAN.streams,
        step_millis: 0,
    };
    let watch = Watch::new();
    let handle = Engine::start(Box::new(Watched::new(runner, watch.clone())), limits).unwrap();
    let outcome = stress(&handle, &watch, SIZES, &PLAN).unwrap();
    (handle, outcome)
}

fn scripted() -> ScriptedRunner {
    ScriptedRunner::new(SIZES.vocab, PAGE_LEN).running_ahead()
}

/// Does something to a batch before the runner gets it.
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

    fn vocab(&self) -> usize {
        self.0.vocab()
    }
}

#[test]
fn a_sound_engine_passes_and_everything_happens_to_it() {
    let (_, o) = run(scripted());
    assert!(o.is_good(&PLAN), "{o:?}");
    assert!(o.alone >= LEAST && o.requests > 20 && o.tokens > 100, "{o:?}");
    assert!(o.cancelled > 0 && o.stats.preemptions > 0 && o.stats.cached_tokens > 0, "{o:?}");
    assert!(o.steps.mixed > 0 && o.steps.sequences == PLAN.streams, "{o:?}");
    assert!(o.steps.by_tokens[..6].iter().all(|n| *n > 0), "every small step size: {o:?}");
}

#[test]
fn a_page_mixed_up_once_is_found_and_explained() {
    let mut steps = 0;
    let (_, o) = run(Broken(scripted(), move |batch: &mut Batch| {
        let reader = |e: &tern_engine::Entry| e.position >= PAGE_LEN;
        let readers: Vec<usize> = (0..batch.entries.len()).filter(|i| reader(&batch.entries[*i])).collect();
        if let [first, .., last] = readers[..] {
            steps += 1;
            if steps == 100 {
                batch.entries[last].pages[0] = batch.entries[first].pages[0];
            }
        }
        Ok(())
    }));
    assert!(!o.is_good(&PLAN) && o.failure.is_none(), "{o:?}");
    assert!((1..=2).contains(&o.differing()), "{o:?}"); // the next step may carry the wrong token on
    assert!(o.largest_gap().is_some(), "{o:?}");
}

#[test]
fn an_error_of_the_runner_ends_the_run_with_its_words() {
    let (_, o) = run(Broken(scripted(), |batch: &mut Batch| {
        let words = || EngineError::Runner("a step on a made-up device: it fell down".into());
        if batch.entries.len() < 3 { Ok(()) } else { Err(words()) }
    }));
    let words = "a step on a made-up device: it fell down".to_string();
    assert_eq!(o.failure, Some(Failure::Engine(words)));
    assert!(!o.is_good(&PLAN) && o.requests > 0);
}

#[test]
fn a_hang_ends_the_run() {
    let (release, held) = mpsc::channel::<()>();
    let (handle, o) = run(Broken(scripted(), move |batch: &mut Batch| {
        if batch.entries.len() == 3 {
            let _ = held.recv();
        }
        Ok(())
    }));
    assert!(matches!(o.failure, Some(Failure::Hang(_))), "{o:?}");
    drop(release);
    handle.shutdown();
}
